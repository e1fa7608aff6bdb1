"""DecideApproval. Decides on a pending approval, once, and lets its run go on."""

from spawnmesh.session.v1.approval_service_pb2 import DecideApprovalRequest, DecideApprovalResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.approvals import ApprovalState, PersonDecision
from spawnmesh_session.domain.text import without_nul
from spawnmesh_session.rpc.approval_messages import render_approval
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_text, render_run


async def decide_approval(
    request: DecideApprovalRequest, caller: Caller, deps: Dependencies
) -> DecideApprovalResponse:
    """Take the decision of the caller, unless there is another one."""
    approval, run = await deps.decider.decide(
        caller.tenant_id, request.approval_id, _parse_decision(request, caller.subject)
    )
    return DecideApprovalResponse(approval=render_approval(approval), run=render_run(run))


def _parse_decision(request: DecideApprovalRequest, subject: str) -> PersonDecision:
    decided_by = without_nul(subject)
    if request.HasField("approve"):
        arguments_json = parse_text("approve.arguments_json", request.approve.arguments_json)
        return PersonDecision(ApprovalState.APPROVED, decided_by, edited_arguments_json=arguments_json)
    if request.HasField("deny"):
        return PersonDecision(ApprovalState.DENIED, decided_by, text=without_nul(request.deny.reason))
    return PersonDecision(ApprovalState.ANSWERED, decided_by, text=without_nul(request.answer.text))
