"""Calls of VerifyTranscript."""

from contextlib import aclosing

from spawnmesh.transcript.v1 import integrity_service_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.integrity_service_pb2_grpc import IntegrityServiceStub
from spawnmesh_runtime.impersonation import use_token

from tests.support.transcript.fixtures import Session


async def verification(
    session: Session, *, after: transcript_pb.Fence | None = None, token: str = ""
) -> list[pb.VerifyTranscriptResponse]:
    """Return all responses, of which only the last may be a result."""
    request = pb.VerifyTranscriptRequest(session_id=session.session_id, after=after)
    peer = session.service.peer
    with use_token(token or session.client_token()):
        stream = peer.stream(IntegrityServiceStub(peer.channel).VerifyTranscript, request, timeout_seconds=60)
        async with aclosing(stream):
            responses = [response async for response in stream]
    assert all(response.HasField("verified") for response in responses[:-1])
    assert not responses[-1].HasField("verified")
    return responses


async def intact(session: Session, *, after: transcript_pb.Fence | None = None) -> transcript_pb.Fence:
    """Verify that the transcript is intact, and return its newest position."""
    last = (await verification(session, after=after))[-1]
    assert last.HasField("intact"), last
    head = (await session.page(page_size=1)).head
    found = last.intact
    assert (found.incarnation, found.seq, found.chain_hash) == (head.incarnation, head.seq, head.chain_hash)
    return found


async def mismatch(session: Session, *, after: transcript_pb.Fence | None = None) -> tuple[int, str]:
    """Return the seq and the cause of the first mismatch."""
    last = (await verification(session, after=after))[-1]
    assert last.HasField("mismatch"), last
    cause = pb.MismatchCause.Name(last.mismatch.cause).removeprefix("MISMATCH_CAUSE_")
    return last.mismatch.seq, cause
