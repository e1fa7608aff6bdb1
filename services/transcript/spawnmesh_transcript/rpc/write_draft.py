"""WriteDraft. Adds pieces to the draft of the run's next answer."""

from spawnmesh.transcript.v1 import live_event_pb2
from spawnmesh.transcript.v1 import live_service_pb2 as pb
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_core.spawn_calls import is_spawn_tool
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.drafts import (
    MAX_DRAFT_BYTES,
    DraftCall,
    DraftId,
    OutputKind,
    Piece,
    WrittenPieces,
)
from spawnmesh_transcript.domain.refusals import require_current
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_key
from spawnmesh_transcript.store import drafts as draft_store


async def write_draft(
    request: pb.WriteDraftRequest, caller: Caller, deps: Dependencies
) -> pb.WriteDraftResponse:
    """Add the pieces if they follow what the draft has, and return how much that is.

    Raises NOT_FOUND, WRITER_CLAIM_LOST and INVALID_REQUEST.
    """
    key, claim = parse_key(request.session_id, caller), parse_claim(request.claim, caller)
    pieces = WrittenPieces(
        DraftId(claim.run_id, claim.epoch, request.number),
        request.after_seq,
        request.model,
        request.offset,
        tuple(_parse_piece(index, piece) for index, piece in enumerate(request.pieces)),
    )
    written = await draft_store.write_draft(deps.database, key, pieces)
    if written is None:
        raise not_found("transcript", key.session_id)
    require_current(claim, written.head)
    deps.notifier.draft_changed(key)
    is_full = pieces.end_offset > MAX_DRAFT_BYTES
    return pb.WriteDraftResponse(end_offset=written.end_offset, accepts_more=written.is_open and not is_full)


def _parse_piece(index: int, piece: live_event_pb2.DraftPiece) -> Piece:
    match piece.WhichOneof("piece"):
        case "text":
            return Piece(OutputKind.TEXT, piece.text.encode())
        case "thinking":
            return Piece(OutputKind.THINKING, piece.thinking.encode())
        case _:
            return _parse_call_piece(f"pieces[{index}].tool_call", piece.tool_call)


def _parse_call_piece(field: str, piece: live_event_pb2.ToolCallPiece) -> Piece:
    if piece.arguments and is_spawn_tool(piece.name):
        raise invalid(f"{field}.arguments", "of a spawn can have the content of files, and are not shown")
    if not piece.arguments and not piece.begins_call:
        raise invalid(f"{field}.arguments", "must not be empty unless the piece begins its call")
    call = DraftCall(piece.tool_call_id, piece.name)
    return Piece(OutputKind.TOOL_CALL, piece.arguments.encode(), call, piece.begins_call)
