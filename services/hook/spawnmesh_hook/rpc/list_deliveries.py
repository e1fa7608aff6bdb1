"""ListDeliveries: read the delivery log, newest first."""

from collections.abc import Sequence
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.errors import invalid
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import render_delivery
from spawnmesh_hook.store import deliveries
from spawnmesh_hook.store.deliveries import Delivery, DeliveryQuery

_DEFAULT_PAGE_SIZE = 100
_END_OF_TIME = datetime(9999, 12, 31, tzinfo=UTC)
_AFTER_ALL_IDS = "~"


async def list_deliveries(
    request: pb.ListDeliveriesRequest, caller: Caller, deps: Dependencies
) -> pb.ListDeliveriesResponse:
    """Return a page. Raises INVALID_REQUEST for a page token or a time that is malformed."""
    query, limit = _parse(request, caller), request.page_size or _DEFAULT_PAGE_SIZE
    async with deps.database.transaction(caller.tenant_id) as connection:
        page = await deliveries.list_deliveries(connection, caller.tenant_id, query, limit)
    return pb.ListDeliveriesResponse(
        deliveries=map(render_delivery, page), next_page_token=_next_page_token(page, limit, request, caller)
    )


def _parse(request: pb.ListDeliveriesRequest, caller: Caller) -> DeliveryQuery:
    before_time, before_id = _END_OF_TIME, _AFTER_ALL_IDS
    if last := position_of(request, caller.tenant_id):
        before_time, before_id = datetime.fromisoformat(str(last[0])), str(last[1])
    has_end = request.HasField("end_time")
    return DeliveryQuery(
        session_id=request.session_id,
        run_id=request.run_id,
        plugin=request.plugin,
        decision=request.decision,
        start_time=_parse_time(request.start_time, "start_time"),
        end_time=_parse_time(request.end_time, "end_time") if has_end else _END_OF_TIME,
        before_time=before_time,
        before_id=before_id,
    )


def _parse_time(time: Timestamp, field: str) -> datetime:
    try:
        return time.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise invalid(field, "is not a valid time") from None


def _next_page_token(
    page: Sequence[Delivery], page_size: int, request: pb.ListDeliveriesRequest, caller: Caller
) -> str:
    """Return the token of the next page, or an empty text if this page is not full."""
    if len(page) < page_size:
        return ""
    last = page[-1]
    return page_token([last.start_time.isoformat(), last.delivery_id], request, caller.tenant_id)
