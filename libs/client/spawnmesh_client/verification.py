"""Verification of transcripts against their hash chains."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from spawnmesh.transcript.v1 import integrity_service_pb2 as pb
from spawnmesh.transcript.v1.integrity_service_pb2_grpc import IntegrityServiceStub
from spawnmesh.transcript.v1.transcript_service_pb2 import Fence
from spawnmesh_core.errors import MeshError

from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.token_peer import TokenPeer

_RETRY_SECONDS = 60.0
_CALL_SECONDS = 3600.0


async def verify_transcript(
    peer: TokenPeer, session_id: str, *, after: Fence | None = None
) -> AsyncIterator[pb.VerifyTranscriptResponse]:
    """Yield the positions that are reached, and last the result.

    It continues after restarts of the service. Raises MeshError NOT_FOUND without a transcript.
    """
    stub = IntegrityServiceStub(peer.channel)
    request = pb.VerifyTranscriptRequest(session_id=session_id, after=after)
    retry = RetryPolicy(_RETRY_SECONDS)
    while True:
        retry.begin_attempt()
        responses = peer.stream(stub.VerifyTranscript, request, timeout_seconds=_CALL_SECONDS)
        try:
            async with aclosing(responses):
                async for response in responses:
                    retry.record_answer()
                    yield response
                    if not response.HasField("verified"):
                        return
                    request.after.CopyFrom(response.verified)
        except MeshError as error:
            await retry.wait_before_next(error)


def checkpoint_text(position: Fence) -> str:
    """Return a position as one word."""
    return f"{position.seq}:{position.chain_hash}:{position.incarnation}"


def parse_checkpoint(text: str) -> Fence:
    """Return the position of `checkpoint_text`. Raises ValueError for another text."""
    seq, chain_hash, incarnation = text.split(":")
    return Fence(incarnation=incarnation, seq=int(seq), chain_hash=chain_hash)
