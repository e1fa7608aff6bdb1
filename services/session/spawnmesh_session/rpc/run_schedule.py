"""RunSchedule. Spawns the session of a schedule now."""

from spawnmesh.session.v1.schedule_service_pb2 import RunScheduleRequest, RunScheduleResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_text
from spawnmesh_session.rpc.schedule_messages import render_firing


async def run_schedule(
    request: RunScheduleRequest, caller: Caller, deps: Dependencies
) -> RunScheduleResponse:
    """Spawn the session, or give the answer of the first call with the request_id.

    Raise NOT_FOUND, and the refusals of a spawn.
    """
    request_id = parse_text("request_id", request.request_id)
    firing = await deps.scheduled.run_now(caller.tenant_id, request.name, request_id)
    return RunScheduleResponse(firing=render_firing(firing))
