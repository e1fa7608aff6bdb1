"""ListSchedules. Returns the tenant's schedules, page by page."""

from spawnmesh.session.v1.schedule_service_pb2 import ListSchedulesRequest, ListSchedulesResponse
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.schedule_messages import render_schedule
from spawnmesh_session.store import runs, schedules

_DEFAULT_PAGE_SIZE = 100


async def list_schedules(
    request: ListSchedulesRequest, caller: Caller, deps: Dependencies
) -> ListSchedulesResponse:
    """Return a page, ordered by name. Raise INVALID_REQUEST for a page token of another list."""
    tenant_id = caller.tenant_id
    last = position_of(request, (str,), tenant_id)
    size = request.page_size or _DEFAULT_PAGE_SIZE
    async with deps.database.pipelined(tenant_id) as connection:
        listed = await schedules.list_schedules(connection, tenant_id)
        now = await runs.read_time(connection)
        found = [schedule for schedule in listed if last is None or schedule.name > last[0]]
        page = [
            render_schedule(
                one, now, await schedules.newest_firing(connection, tenant_id, one.schedule_id), 1
            )
            for one in found[:size]
        ]
    has_more = len(found) > size
    return ListSchedulesResponse(
        schedules=page,
        next_page_token=page_token((page[-1].name,), request, tenant_id) if has_more else "",
    )
