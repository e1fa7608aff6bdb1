"""AwaitBudget. Gives a run up that was refused a model call, until its budgets have room."""

from spawnmesh.session.v1.budget_pb2 import AwaitBudgetRequest, AwaitBudgetResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.runs import CallingRun
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_usage, render_run


async def await_budget(
    request: AwaitBudgetRequest, caller: Caller, deps: Dependencies
) -> AwaitBudgetResponse:
    """Let the run wait, or end it, or say that its budgets have room.

    A repeat at this epoch returns the run as it is.
    """
    require_epoch(caller, request.epoch)
    calling = CallingRun(caller.session_id, caller.run_id, request.epoch)
    usage = parse_usage(request.usage) if request.HasField("usage") else None
    run = await deps.budget_waits.wait(caller.tenant_id, calling, usage)
    return AwaitBudgetResponse(run=render_run(run))
