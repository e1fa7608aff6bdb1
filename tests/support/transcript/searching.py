"""Search as a client of a session."""

from typing import Any

from spawnmesh.transcript.v1 import search_service_pb2 as pb
from spawnmesh.transcript.v1.search_service_pb2_grpc import SearchServiceStub
from spawnmesh_runtime.impersonation import use_token

from tests.support.transcript.fixtures import (
    Session,
)


async def search(
    session: Session, *, token: str = "", seconds: float = 60, **fields: Any
) -> pb.SearchEntriesResponse:
    request = pb.SearchEntriesRequest(session_id=session.session_id, **fields)
    peer = session.service.peer
    with use_token(token or session.client_token()):
        return await peer.unary(
            SearchServiceStub(peer.channel).SearchEntries, request, timeout_seconds=seconds
        )


async def seqs(session: Session, **fields: Any) -> list[int]:
    """Return the seqs of the hits."""
    return [hit.seq for hit in (await search(session, **fields)).hits]
