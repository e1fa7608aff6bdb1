"""EndInterruptedRun. Ends a run that a caller interrupted, for the runner that holds it."""

from spawnmesh.session.v1.run_service_pb2 import EndInterruptedRunRequest, EndInterruptedRunResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_usage, render_run


async def end_interrupted_run(
    request: EndInterruptedRunRequest, caller: Caller, deps: Dependencies
) -> EndInterruptedRunResponse:
    """End the run as INTERRUPTED. A repeat at this epoch returns the run."""
    require_epoch(caller, request.epoch)
    usage = parse_usage(request.usage) if request.HasField("usage") else None
    run = await deps.interrupter.end(caller.tenant_id, caller.run_id, request.epoch, usage)
    return EndInterruptedRunResponse(run=render_run(run))
