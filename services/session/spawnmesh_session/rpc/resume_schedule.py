"""ResumeSchedule. Resumes a schedule."""

from spawnmesh.session.v1.schedule_service_pb2 import ResumeScheduleRequest, ResumeScheduleResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.operations.schedule_jobs import pause_or_resume
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.schedule_messages import render_schedule


async def resume_schedule(
    request: ResumeScheduleRequest, caller: Caller, deps: Dependencies
) -> ResumeScheduleResponse:
    """Resume the schedule and return it. Raise NOT_FOUND."""
    schedule, now, newest = await pause_or_resume(deps.database, caller.tenant_id, request.name, paused=False)
    return ResumeScheduleResponse(schedule=render_schedule(schedule, now, newest))
