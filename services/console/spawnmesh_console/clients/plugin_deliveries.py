"""The log of a plugin's calls, page by page."""

from dataclasses import dataclass

from spawnmesh.hook.v1 import delivery_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh_client.client import Mesh
from spawnmesh_client.resource_views import PluginDelivery
from spawnmesh_client.view_of import number_of, view_of


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """Calls of a plugin, and the token of the next page; empty on the last one."""

    deliveries: list[PluginDelivery]
    next_page_token: str


async def delivery_page(
    mesh: Mesh, plugin: str, *, decision: str = "", page_token: str = "", page_size: int = 25
) -> DeliveryPage:
    """Return a page of the calls with this decision, newest first. It can be short, or empty.

    Raises ValueError for a word that is no decision.
    """
    number = number_of(decision, delivery_pb2.DeliveryDecision.DESCRIPTOR)
    request = pb.ListDeliveriesRequest(
        plugin=plugin,
        decision=delivery_pb2.DeliveryDecision.ValueType(number),
        page_token=page_token,
        page_size=page_size,
    )
    peer = mesh.wire.service("hook")
    answer = await peer.unary(HookServiceStub(peer.channel).ListDeliveries, request)
    return DeliveryPage([view_of(PluginDelivery, one) for one in answer.deliveries], answer.next_page_token)
