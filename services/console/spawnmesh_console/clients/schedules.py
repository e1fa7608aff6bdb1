"""The history of a schedule, page by page."""

from dataclasses import dataclass

from spawnmesh.session.v1 import schedule_pb2
from spawnmesh.session.v1 import schedule_service_pb2 as pb
from spawnmesh.session.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from spawnmesh_client.client import Mesh
from spawnmesh_client.schedule_views import ScheduleFiring, firing_view
from spawnmesh_client.view_of import number_of


@dataclass(frozen=True, slots=True)
class ScheduleHistoryPage:
    """Firings of a schedule, and the token of the next page; empty on the last one."""

    firings: list[ScheduleFiring]
    next_page_token: str


async def firings_page(
    mesh: Mesh, schedule: str, *, outcome: str = "", page_token: str = "", page_size: int = 25
) -> ScheduleHistoryPage:
    """Return a page of the firings with this outcome, newest due time first.

    Raises ValueError for a word that is no outcome.
    """
    number = number_of(outcome, schedule_pb2.FiringOutcome.DESCRIPTOR)
    request = pb.ListScheduleFiringsRequest(
        name=schedule,
        outcome=schedule_pb2.FiringOutcome.ValueType(number),
        page_token=page_token,
        page_size=page_size,
    )
    peer = mesh.wire.service("session")
    answer = await peer.unary(ScheduleServiceStub(peer.channel).ListScheduleFirings, request)
    return ScheduleHistoryPage([firing_view(one) for one in answer.firings], answer.next_page_token)
