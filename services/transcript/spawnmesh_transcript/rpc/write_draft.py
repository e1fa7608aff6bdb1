"""WriteDraft. Adds text to the draft of the run's next answer."""

from spawnmesh.transcript.v1 import live_service_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.drafts import MAX_DRAFT_BYTES, DraftId, DraftPiece
from spawnmesh_transcript.domain.refusals import require_current
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_key
from spawnmesh_transcript.store import drafts as draft_store


async def write_draft(
    request: pb.WriteDraftRequest, caller: Caller, deps: Dependencies
) -> pb.WriteDraftResponse:
    """Add the text if it follows what the draft has, and return how much that is.

    Raises NOT_FOUND and WRITER_CLAIM_LOST.
    """
    key, claim = parse_key(request.session_id, caller), parse_claim(request.claim, caller)
    text = request.text.encode()
    piece = DraftPiece(
        DraftId(claim.run_id, claim.epoch, request.number),
        request.after_seq,
        request.model,
        request.offset,
        text,
    )
    written = await draft_store.write_draft(deps.database, key, piece)
    if written is None:
        raise not_found("transcript", key.session_id)
    require_current(claim, written.head)
    deps.notifier.draft_changed(key)
    is_full = request.offset + len(text) > MAX_DRAFT_BYTES
    return pb.WriteDraftResponse(end_offset=written.end_offset, accepts_more=written.is_open and not is_full)
