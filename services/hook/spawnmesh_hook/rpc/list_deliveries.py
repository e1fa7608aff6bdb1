"""ListDeliveries: read the delivery log, newest first."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.errors import invalid
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import parse_delivery_decision, render_delivery
from spawnmesh_hook.store import deliveries
from spawnmesh_hook.store.deliveries import DeliveryQuery

_DEFAULT_PAGE_SIZE = 100
_END_OF_TIME = datetime(9999, 12, 31, tzinfo=UTC)
_AFTER_ALL_IDS = "~"


async def list_deliveries(
    request: pb.ListDeliveriesRequest, caller: Caller, deps: Dependencies
) -> pb.ListDeliveriesResponse:
    """Return a page. Raises INVALID_REQUEST for a page token or a time that is malformed."""
    query, size = _parse(request, caller), request.page_size or _DEFAULT_PAGE_SIZE
    async with deps.database.transaction(caller.tenant_id) as connection:
        page = await deliveries.list_deliveries(connection, caller.tenant_id, query, page_size=size)
    return pb.ListDeliveriesResponse(
        deliveries=map(render_delivery, page.deliveries),
        next_page_token=page_token(page.end, request, caller.tenant_id) if page.end else "",
    )


def _parse(request: pb.ListDeliveriesRequest, caller: Caller) -> DeliveryQuery:
    last = position_of(request, (datetime, str), caller.tenant_id)
    before_time, before_id = last or (_END_OF_TIME, _AFTER_ALL_IDS)
    has_end = request.HasField("end_time")
    return DeliveryQuery(
        session_id=request.session_id,
        run_id=request.run_id,
        plugin=request.plugin,
        decision=parse_delivery_decision(request.decision),
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
