"""RequestApproval. Lets a person decide on a call, or answer a question; the run is given up."""

from spawnmesh.session.v1.approval_pb2 import RequestApprovalRequest, RequestApprovalResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.approvals import DEFAULT_TIMEOUT, NewApproval
from spawnmesh_session.domain.runs import CallingRun
from spawnmesh_session.domain.text import without_nul
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.rpc.approval_messages import (
    parse_call,
    parse_policy,
    parse_question,
    parse_tool_call,
    render_approval,
)
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_run


async def request_approval(
    request: RequestApprovalRequest, caller: Caller, deps: Dependencies
) -> RequestApprovalResponse:
    """Give the run up until a person has decided. A repeat at this epoch returns the approval.

    A run that was interrupted ends instead.
    """
    require_epoch(caller, request.epoch)
    calling = CallingRun(caller.session_id, caller.run_id, request.epoch)
    approval, run = await deps.requester.request(caller.tenant_id, calling, _parse(request, caller.run_id))
    if approval is None:
        ended = await deps.interrupter.end_released(caller.tenant_id, run, request.epoch)
        return RequestApprovalResponse(run=render_run(ended))
    return RequestApprovalResponse(approval=render_approval(approval), run=render_run(run))


def _parse(request: RequestApprovalRequest, run_id: str) -> NewApproval:
    is_call = request.HasField("tool_call")
    return NewApproval(
        approval_id=parse_call(run_id, request.call),
        subject=parse_tool_call(request.tool_call) if is_call else parse_question(request.question),
        reason=without_nul(request.reason),
        timeout=request.timeout.ToTimedelta() if request.HasField("timeout") else DEFAULT_TIMEOUT,
        on_expiry=parse_policy(request.on_expiry),
    )
