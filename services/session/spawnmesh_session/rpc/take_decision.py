"""TakeDecision. Returns what was decided on a call; an approved call is begun by this epoch."""

from spawnmesh.session.v1.approval_pb2 import TakeDecisionRequest, TakeDecisionResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.runs import CallingRun
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.rpc.approval_messages import parse_call, render_approval
from spawnmesh_session.rpc.dependencies import Dependencies


async def take_decision(
    request: TakeDecisionRequest, caller: Caller, deps: Dependencies
) -> TakeDecisionResponse:
    """Take over the decision on a call of the run, which this epoch must hold."""
    require_epoch(caller, request.epoch)
    calling = CallingRun(caller.session_id, caller.run_id, request.epoch)
    approval_id = parse_call(caller.run_id, request.call)
    approval, was_begun = await deps.requester.take(caller.tenant_id, calling, approval_id)
    if approval is None:
        return TakeDecisionResponse()
    return TakeDecisionResponse(approval=render_approval(approval), was_begun=was_begun)
