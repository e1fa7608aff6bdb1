"""ListTranscripts.

Returns the transcripts by session id, page by page, with the storage that each uses.
"""

from dataclasses import asdict

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.store import transcripts as transcript_store

_DEFAULT_PAGE_SIZE = 100


async def list_transcripts(
    request: pb.ListTranscriptsRequest, caller: Caller, deps: Dependencies
) -> pb.ListTranscriptsResponse:
    """Return a page of the tenant's transcripts with their sizes, by session id.

    Raises INVALID_REQUEST for a page token of another list.
    """
    last = position_of(request, (str,), caller.tenant_id)
    async with deps.database.transaction(caller.tenant_id) as connection:
        page = await transcript_store.list_transcript_sizes(
            connection,
            caller.tenant_id,
            after_session_id=last[0] if last else "",
            page_size=request.page_size or _DEFAULT_PAGE_SIZE,
        )
    return pb.ListTranscriptsResponse(
        transcripts=[pb.TranscriptSize(**asdict(size)) for size in page.sizes],
        next_page_token=page_token([page.end], request, caller.tenant_id) if page.end else "",
    )
