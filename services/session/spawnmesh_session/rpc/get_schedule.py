"""GetSchedule. Returns a schedule."""

from spawnmesh.session.v1.schedule_service_pb2 import GetScheduleRequest, GetScheduleResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.schedule_messages import render_schedule
from spawnmesh_session.store import runs, schedules


async def get_schedule(
    request: GetScheduleRequest, caller: Caller, deps: Dependencies
) -> GetScheduleResponse:
    """Return the schedule. Raise NOT_FOUND."""
    tenant_id = caller.tenant_id
    async with deps.database.pipelined(tenant_id) as connection:
        schedule = await schedules.get_schedule(connection, tenant_id, request.name)
        now = await runs.read_time(connection)
        newest = await schedules.newest_firing(connection, tenant_id, schedule.schedule_id)
    return GetScheduleResponse(schedule=render_schedule(schedule, now, newest))
