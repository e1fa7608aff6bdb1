"""DeleteTranscript. Deletes the transcript with all its data."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.operations.deletion import delete_pages
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key
from spawnmesh_transcript.store import deletions as deletion_store
from spawnmesh_transcript.store import tenants as tenant_store


async def delete_transcript(
    request: pb.DeleteTranscriptRequest, caller: Caller, deps: Dependencies
) -> pb.DeleteTranscriptResponse:
    """Delete the transcript at once for readers and writers, and then its rows page by page.

    A call that is cut off is resumed by the next one. Raises MeshError if the transcript has
    payloads and the blob store is unavailable: their rows stay until a later call releases them.
    """
    key = parse_key(request.session_id, caller)
    async with deps.database.transaction(key.tenant_id) as connection:
        is_open = await tenant_store.enter_tenant(connection, key.tenant_id)
        if is_open:
            await deletion_store.mark_deleted(connection, key)
    if is_open:  # Otherwise a purge of the tenant deletes everything.
        await deps.uploader.release(key)
        await delete_pages(deps.database, key)
    deps.notifier.transcript_changed(key)
    return pb.DeleteTranscriptResponse()
