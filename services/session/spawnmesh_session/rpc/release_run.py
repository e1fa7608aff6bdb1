"""ReleaseRun. Returns the run to the queue: its runner must stop, or cannot go on now."""

from spawnmesh.session.v1.run_service_pb2 import ReleaseDelay, ReleaseRunRequest, ReleaseRunResponse
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.runs import NO_DELAY, NewDelay
from spawnmesh_session.domain.text import without_nul
from spawnmesh_session.operations import run_release
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_run


async def release_run(request: ReleaseRunRequest, caller: Caller, deps: Dependencies) -> ReleaseRunResponse:
    """Release the run for the runner that holds it. A repeat at this epoch returns the run.

    A run that was interrupted ends instead.
    """
    require_epoch(caller, request.epoch)
    delay = _parse_delay(request.delay) if request.HasField("delay") else NO_DELAY
    run = await run_release.release_run(deps.database, caller.tenant_id, caller.run_id, request.epoch, delay)
    if delay != NO_DELAY:
        deps.metrics.delayed(delay)
    run = await deps.interrupter.end_released(caller.tenant_id, run, request.epoch)
    return ReleaseRunResponse(run=render_run(run))


def _parse_delay(delay: ReleaseDelay) -> NewDelay:
    return NewDelay(reason_of(delay.reason) or "", without_nul(delay.message), delay.min_pause.ToTimedelta())
