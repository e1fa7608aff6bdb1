"""Compaction of a transcript, and the sources of a summary."""

import uuid
from collections.abc import AsyncIterator, Sequence

from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh.transcript.v1.compaction_service_pb2_grpc import CompactionServiceStub
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_calls.wire_errors import error_of_status

from spawnmesh_client.operations import OnOperation, ignore_progress, run_operation
from spawnmesh_client.pages import pages_of
from spawnmesh_client.token_peer import TokenPeer

_PAGE = 200


async def compact_transcript(
    peer: TokenPeer,
    session_id: str,
    *,
    models: Sequence[str] = (),
    fresh_tail: FreshTail | None = None,
    on_progress: OnOperation = ignore_progress,
) -> pb.CompactTranscriptResponse:
    """Have what is no longer fresh in a transcript summarized by an operation, and wait for it.

    It goes on after restarts of the service. The response names no summary if there was nothing to
    summarize. Raises MeshError: NOT_FOUND without a transcript, CONFLICT while a run writes the
    transcript, and the error of the operation.
    """
    request = pb.CompactTranscriptRequest(
        session_id=session_id, models=models, fresh_tail=fresh_tail, request_id=uuid.uuid4().hex
    )
    stub = CompactionServiceStub(peer.channel)
    operation = await run_operation(peer, stub.CompactTranscript, request, on_progress)
    if operation.HasField("error"):
        raise error_of_status(operation.error)
    compacted = pb.CompactTranscriptResponse()
    operation.response.Unpack(compacted)
    return compacted


async def expand_summary(peer: TokenPeer, session_id: str, entry_id: str) -> AsyncIterator[Entry]:
    """Yield the sources of a summary, oldest first: the summary before it, if any, then messages
    and notes.
    """
    stub = CompactionServiceStub(peer.channel)
    request = pb.ExpandSummaryRequest(session_id=session_id, entry_id=entry_id, page_size=_PAGE)
    async for page in pages_of(peer, stub.ExpandSummary, request):
        for entry in page.entries:
            yield entry
