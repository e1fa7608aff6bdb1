"""ListScheduleFirings. Returns the history of a schedule, newest due time first."""

from datetime import UTC, datetime

from spawnmesh.session.v1.schedule_service_pb2 import (
    ListScheduleFiringsRequest,
    ListScheduleFiringsResponse,
)
from spawnmesh_calls.wire_times import time_of
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.schedule_messages import parse_outcome, render_firing
from spawnmesh_session.store import schedules
from spawnmesh_session.store.schedules import FiringQuery

_DEFAULT_PAGE_SIZE = 100
_END_OF_TIME = datetime(9999, 12, 31, tzinfo=UTC)
_AFTER_ALL_IDS = "~"


async def list_schedule_firings(
    request: ListScheduleFiringsRequest, caller: Caller, deps: Dependencies
) -> ListScheduleFiringsResponse:
    """Return a page. Raise NOT_FOUND, and INVALID_REQUEST for a malformed page token or time."""
    tenant_id = caller.tenant_id
    last = position_of(request, (datetime, str), tenant_id)
    before_time, before_id = last or (_END_OF_TIME, _AFTER_ALL_IDS)
    has_end = request.HasField("end_time")
    query = FiringQuery(
        outcome=parse_outcome(request.outcome),
        start_time=time_of(request.start_time, "start_time"),
        end_time=time_of(request.end_time, "end_time") if has_end else _END_OF_TIME,
        before_time=before_time,
        before_id=before_id,
    )
    async with deps.database.pipelined(tenant_id) as connection:
        schedule = await schedules.get_schedule(connection, tenant_id, request.name)
        page = await schedules.list_firings(
            connection,
            tenant_id,
            schedule.schedule_id,
            query,
            page_size=request.page_size or _DEFAULT_PAGE_SIZE,
        )
    return ListScheduleFiringsResponse(
        firings=map(render_firing, page.firings),
        next_page_token=page_token(page.end, request, tenant_id) if page.end else "",
    )
