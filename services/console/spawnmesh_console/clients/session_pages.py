"""Lists of sessions, page by page."""

from dataclasses import dataclass

from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import ListSessionsRequest
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh_client.client import Mesh
from spawnmesh_client.session import Session, session_view


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Sessions of a list, and the token of its next page; empty on the last one."""

    sessions: list[Session]
    next_page_token: str


async def session_page(
    mesh: Mesh, *, filter: str = "", order_by: str = "", page_token: str = "", page_size: int = 50
) -> SessionPage:
    """Return a page of the sessions that the filter accepts, newest first unless `order_by` says
    otherwise. It can be short.
    """
    peer = mesh.wire.service("session")
    request = ListSessionsRequest(
        filter=filter,
        order_by=order_by,
        page_token=page_token,
        page_size=page_size,
        view=session_pb2.SESSION_VIEW_BASIC,
    )
    answer = await peer.unary(SessionServiceStub(peer.channel).ListSessions, request)
    return SessionPage([session_view(one, mesh.wire) for one in answer.sessions], answer.next_page_token)
