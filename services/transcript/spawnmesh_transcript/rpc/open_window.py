"""OpenWindow.

Nothing of a window is stored, so that a runner that dies inside one leaves nothing behind.
"""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.prompt_window import Fence
from spawnmesh_transcript.domain.refusals import require_current
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_key, render_fence
from spawnmesh_transcript.store import entries as entry_store


async def open_window(
    request: pb.OpenWindowRequest, caller: Caller, deps: Dependencies
) -> pb.OpenWindowResponse:
    """Return the fence at the head.

    Raises NOT_FOUND, and WRITER_CLAIM_LOST if the claim is not current.
    """
    key, claim = parse_key(request.session_id, caller), parse_claim(request.claim, caller)
    scanned = await entry_store.scan_window(deps.database, key, from_seq=1, row_count=0, max_bytes=0)
    if scanned is None:
        raise not_found("transcript", key.session_id)
    head, _, _ = scanned
    require_current(claim, head)
    return pb.OpenWindowResponse(fence=render_fence(Fence(head.incarnation, head.seq, head.chain_hash)))
