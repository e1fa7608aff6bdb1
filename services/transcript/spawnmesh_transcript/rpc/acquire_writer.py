"""AcquireWriter. Makes (run, epoch) the one writer."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.domain.refusals import claim_lost
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_key, render_head
from spawnmesh_transcript.store import writers as writer_store


async def acquire_writer(
    request: pb.AcquireWriterRequest, caller: Caller, deps: Dependencies
) -> pb.AcquireWriterResponse:
    """Make the claim the current one.

    Raises WRITER_CLAIM_LOST for a claim that is too low, and NOT_FOUND.
    """
    key, claim = parse_key(request.session_id, caller), parse_claim(request.claim, caller)
    return pb.AcquireWriterResponse(head=render_head(await acquire(key, claim, deps)))


async def acquire(key: Key, claim: WriterClaim, deps: Dependencies) -> Head:
    """Make the claim the current one and return the head. Raises what AcquireWriter raises."""
    acquired = await writer_store.acquire_writer(deps.database, key, claim)
    if acquired is None:
        raise not_found("transcript", key.session_id)
    if not acquired.is_moved:
        raise claim_lost(acquired.head)
    if acquired.has_retracted:
        deps.notifier.draft_changed(key)
    return acquired.head
