"""FailRun. Ends the run as FAILED, for the runner that holds it, and notifies the parent."""

from spawnmesh.session.v1.run_service_pb2 import FailRunRequest, FailRunResponse
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.runs import (
    TERMINAL_RUN_STATES,
    RunOutcome,
    RunState,
    require_lease,
    require_same_end,
)
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_usage, render_run
from spawnmesh_session.store import runs


async def fail_run(request: FailRunRequest, caller: Caller, deps: Dependencies) -> FailRunResponse:
    """End the run as FAILED for the runner that holds it.

    A repeat at this epoch returns the run.
    """
    require_epoch(caller, request.epoch)
    tenant_id, epoch = caller.tenant_id, request.epoch
    outcome = RunOutcome(
        state=RunState.FAILED,
        error_reason=reason_of(request.reason) or "",
        error_message=request.message,
        usage=parse_usage(request.usage) if request.HasField("usage") else None,
    )
    async with deps.database.pipelined(tenant_id) as connection:
        locked = await runs.lock_run_with_sessions(connection, tenant_id, caller.run_id)
        if locked.run.state in TERMINAL_RUN_STATES:
            run = require_same_end(locked.run, epoch, RunState.FAILED)
            return FailRunResponse(run=render_run(run))
        require_lease(locked.run, epoch)
        ended = await deps.terminator.terminate(connection, tenant_id, locked, outcome, epoch=epoch)
    failed = await ended.fetch() if ended is not None else locked.run
    if failed is None:
        raise RuntimeError("a run that was locked and open was not ended")
    return FailRunResponse(run=render_run(failed))
