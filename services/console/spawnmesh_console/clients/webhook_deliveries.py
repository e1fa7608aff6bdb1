"""The log of a webhook, page by page."""

from dataclasses import dataclass

from spawnmesh.hook.v1 import webhook_pb2
from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh.hook.v1.webhook_service_pb2_grpc import WebhookServiceStub
from spawnmesh_client.client import Mesh
from spawnmesh_client.view_of import number_of
from spawnmesh_client.webhook_views import WebhookDelivery, delivery_view, event_type_number


@dataclass(frozen=True, slots=True)
class WebhookLogPage:
    """Messages to a webhook, and the token of the next page; empty on the last one."""

    deliveries: list[WebhookDelivery]
    next_page_token: str


async def webhook_log_page(
    mesh: Mesh,
    webhook: str,
    *,
    state: str = "",
    event_type: str = "",
    page_token: str = "",
    page_size: int = 25,
) -> WebhookLogPage:
    """Return a page of the messages in this state and of this type, newest event first. It can be
    short, or empty.

    Raises ValueError for a word that is no state, and for an unknown type.
    """
    number = number_of(state, webhook_pb2.WebhookDeliveryState.DESCRIPTOR)
    request = pb.ListWebhookDeliveriesRequest(
        name=webhook,
        state=webhook_pb2.WebhookDeliveryState.ValueType(number),
        event_type=event_type_number(event_type),
        page_token=page_token,
        page_size=page_size,
    )
    peer = mesh.wire.service("hook")
    answer = await peer.unary(WebhookServiceStub(peer.channel).ListWebhookDeliveries, request)
    return WebhookLogPage([delivery_view(one) for one in answer.deliveries], answer.next_page_token)
