"""Compaction of a transcript, and the sources of a summary."""

from collections.abc import AsyncIterator, Sequence

from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh.transcript.v1.compaction_service_pb2_grpc import CompactionServiceStub
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh.transcript.v1.entry_pb2 import Entry

from spawnmesh_client.pages import pages_of
from spawnmesh_client.token_peer import TokenPeer

_COMPACT_SECONDS = 600.0
_PAGE = 200


async def compact_transcript(
    peer: TokenPeer, session_id: str, *, models: Sequence[str] = (), fresh_tail: FreshTail | None = None
) -> pb.CompactTranscriptResponse:
    """Have the oldest part of a transcript summarized once.

    A long transcript takes several calls.

    The response has no summary if there was nothing to summarize. Raises MeshError CONFLICT while a
    run writes the transcript.
    """
    request = pb.CompactTranscriptRequest(session_id=session_id, models=models, fresh_tail=fresh_tail)
    stub = CompactionServiceStub(peer.channel)
    return await peer.unary(stub.CompactTranscript, request, timeout_seconds=_COMPACT_SECONDS)


async def expand_summary(peer: TokenPeer, session_id: str, entry_id: str) -> AsyncIterator[Entry]:
    """Yield the sources of a summary, oldest first: the summary before it, if any, then messages
    and notes.
    """
    stub = CompactionServiceStub(peer.channel)
    request = pb.ExpandSummaryRequest(session_id=session_id, entry_id=entry_id, page_size=_PAGE)
    async for page in pages_of(peer, stub.ExpandSummary, request):
        for entry in page.entries:
            yield entry
