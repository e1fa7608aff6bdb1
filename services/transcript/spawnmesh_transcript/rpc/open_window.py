"""OpenWindow.

Nothing of a window is stored, so that a runner that dies inside one leaves nothing behind.
"""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.prompt_window import fence_at
from spawnmesh_transcript.rpc.acquire_writer import acquire
from spawnmesh_transcript.rpc.assemble_context import read_context
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_key, render_fence


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
        head, context = await read_context(request.context, key, deps, claim)
        return pb.OpenWindowResponse(fence=render_fence(fence_at(head)), context=context)
    head = await acquire(key, claim, deps)
    return pb.OpenWindowResponse(fence=render_fence(fence_at(head)))


def _require_present(request: pb.OpenWindowRequest) -> None:
    if request.context.session_id != request.session_id:
        raise invalid("context.session_id", "is not that of the window")
    if request.context.up_to_seq:
        raise invalid("context.up_to_seq", "is set: a window is of now")
