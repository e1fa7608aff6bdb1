"""ListWebhookDeliveries: read the log of a webhook, newest event first."""

from datetime import UTC, datetime

from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_calls.wire_times import time_of
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.webhook_messages import parse_state, parse_type, render_delivery
from spawnmesh_hook.store import webhook_deliveries, webhooks
from spawnmesh_hook.store.webhook_deliveries import WebhookDeliveryQuery

_DEFAULT_PAGE_SIZE = 100
_END_OF_TIME = datetime(9999, 12, 31, tzinfo=UTC)
_AFTER_ALL_IDS = "~"


async def list_webhook_deliveries(
    request: pb.ListWebhookDeliveriesRequest, caller: Caller, deps: Dependencies
) -> pb.ListWebhookDeliveriesResponse:
    """Return a page. Raises NOT_FOUND, and INVALID_REQUEST for a malformed page token or time."""
    query, size = _parse(request, caller), request.page_size or _DEFAULT_PAGE_SIZE
    tenant_id = caller.tenant_id
    async with deps.database.transaction(tenant_id) as connection:
        webhook = await webhooks.get_webhook(connection, tenant_id, request.name)
        page = await webhook_deliveries.list_webhook_deliveries(
            connection, tenant_id, webhook.webhook_id, query, page_size=size
        )
    return pb.ListWebhookDeliveriesResponse(
        deliveries=map(render_delivery, page.deliveries),
        next_page_token=page_token(page.end, request, tenant_id) if page.end else "",
    )


def _parse(request: pb.ListWebhookDeliveriesRequest, caller: Caller) -> WebhookDeliveryQuery:
    last = position_of(request, (datetime, str), caller.tenant_id)
    before_time, before_id = last or (_END_OF_TIME, _AFTER_ALL_IDS)
    has_end = request.HasField("end_time")
    return WebhookDeliveryQuery(
        session_id=request.session_id,
        state=parse_state(request.state),
        event_type=parse_type(request.event_type),
        start_time=time_of(request.start_time, "start_time"),
        end_time=time_of(request.end_time, "end_time") if has_end else _END_OF_TIME,
        before_time=before_time,
        before_id=before_id,
    )
