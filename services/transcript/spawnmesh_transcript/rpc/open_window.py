"""OpenWindow.

Nothing of a window is stored, so that a runner that dies inside one leaves nothing behind.
"""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError, invalid, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.domain.prompt_window import fence_at
from spawnmesh_transcript.domain.refusals import require_current
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.rpc.acquire_writer import acquire
from spawnmesh_transcript.rpc.assemble_context import read_context
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_key, render_fence
from spawnmesh_transcript.store import entries as entry_store


async def open_window(
    request: pb.OpenWindowRequest, caller: Caller, deps: Dependencies
) -> pb.OpenWindowResponse:
    """Make the claim the current one, and return the fence and the context at the head.

    Raises WRITER_CLAIM_LOST for a claim that is too low, INVALID_REQUEST for a context of another
    session or of an earlier time, and what AssembleContext raises.
    """
    key, claim = parse_key(request.session_id, caller), parse_claim(request.claim, caller)
    if request.HasField("context"):
        _require_present(request)
    try:
        return await _open(request, key, claim, deps)
    except MeshError as error:
        if error.reason is not Reason.WRITER_CLAIM_LOST:
            raise
    # The first window of a claim. A claim that is too low is refused here.
    await acquire(key, claim, deps)
    return await _open(request, key, claim, deps)


def _require_present(request: pb.OpenWindowRequest) -> None:
    if request.context.session_id != request.session_id:
        raise invalid("context.session_id", "is not that of the window")
    if request.context.up_to_seq:
        raise invalid("context.up_to_seq", "is set: a window is of now")


async def _open(
    request: pb.OpenWindowRequest, key: Key, claim: WriterClaim, deps: Dependencies
) -> pb.OpenWindowResponse:
    """Open the window. Raises WRITER_CLAIM_LOST if the claim is not current."""
    if not request.HasField("context"):
        return pb.OpenWindowResponse(fence=render_fence(fence_at(await _current_head(key, claim, deps))))
    head, context = await read_context(request.context, key, deps, claim)
    return pb.OpenWindowResponse(fence=render_fence(fence_at(head)), context=context)


async def _current_head(key: Key, claim: WriterClaim, deps: Dependencies) -> Head:
    scanned = await entry_store.scan_window(deps.database, key, from_seq=1, row_count=0, max_bytes=0)
    if scanned is None:
        raise not_found("transcript", key.session_id)
    head, _, _ = scanned
    require_current(claim, head)
    return head
