"""ReleaseWriter. Releases the claim."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_key, render_head
from spawnmesh_transcript.store import writers as writer_store


async def release_writer(
    request: pb.ReleaseWriterRequest, caller: Caller, deps: Dependencies
) -> pb.ReleaseWriterResponse:
    """End the claim and every lower one, acquired or not: none of them can become current again.

    Raises NOT_FOUND.
    """
    key, claim = parse_key(request.session_id, caller), parse_claim(request.claim, caller)
    released = await writer_store.release_writer(deps.database, key, claim)
    if released is None:
        raise not_found("transcript", key.session_id)
    if released.has_retracted:
        deps.notifier.draft_changed(key)
    return pb.ReleaseWriterResponse(head=render_head(released.head))
