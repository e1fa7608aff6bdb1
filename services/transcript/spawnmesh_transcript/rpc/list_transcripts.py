"""ListTranscripts.

Returns the transcripts by session id, page by page, with the storage that each uses.
"""

from dataclasses import asdict

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.store import transcripts as transcript_store

_DEFAULT_PAGE_SIZE = 100


async def list_transcripts(
    request: pb.ListTranscriptsRequest, caller: Caller, deps: Dependencies
) -> pb.ListTranscriptsResponse:
    """Return a page of the tenant's transcripts with their sizes, by session id."""
    page_size = request.page_size or _DEFAULT_PAGE_SIZE
    async with deps.database.transaction(caller.tenant_id) as connection:
        found = await transcript_store.list_transcripts(
            connection,
            caller.tenant_id,
            after_session_id=request.after_session_id,
            row_count=page_size + 1,
        )
    return pb.ListTranscriptsResponse(
        transcripts=[pb.TranscriptSize(**asdict(size)) for size in found[:page_size]],
        has_more=len(found) > page_size,
    )
