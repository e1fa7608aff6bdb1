"""CloseWindow. Verifies that everything since the fence is the run's own work."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.operations.window_check import moved_fence
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_fence, parse_key, render_fence


async def close_window(
    request: pb.CloseWindowRequest, caller: Caller, deps: Dependencies
) -> pb.CloseWindowResponse:
    """Return the fence at the head. Raises what `moved_fence` raises."""
    key, claim = parse_key(request.session_id, caller), parse_claim(request.claim, caller)
    fence = await moved_fence(deps.database, deps.blobs, key, claim, parse_fence(request.fence))
    return pb.CloseWindowResponse(fence=render_fence(fence))
