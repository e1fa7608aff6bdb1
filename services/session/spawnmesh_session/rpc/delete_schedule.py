"""DeleteSchedule. Deletes a schedule with its history."""

from spawnmesh.session.v1.schedule_service_pb2 import DeleteScheduleRequest, DeleteScheduleResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.etags import etag_differs
from spawnmesh_session.operations.schedule_jobs import remove_schedule
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import schedules


async def delete_schedule(
    request: DeleteScheduleRequest, caller: Caller, deps: Dependencies
) -> DeleteScheduleResponse:
    """Delete the schedule, if it exists. Raise ETAG_DIFFERS."""
    tenant_id = caller.tenant_id
    async with deps.database.pipelined(tenant_id) as connection:
        current = await schedules.find_and_lock_schedule(connection, tenant_id, request.name)
        if current is not None:
            if request.etag not in ("", current.etag):
                raise etag_differs(
                    "etag", "schedule", current.name, etag=current.etag, version=current.version
                )
            await remove_schedule(connection, tenant_id, current)
    return DeleteScheduleResponse()
