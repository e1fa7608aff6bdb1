"""RecountTranscript.

Counts the tokens of entries again that were counted by another vocabulary than that of the tenant's
settings, some entries for each call: continue with `next_after_seq` until `done`.
"""

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.operations.recounting import recount
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key

_DEFAULT_ENTRY_COUNT = 1_000


async def recount_transcript(
    request: pb.RecountTranscriptRequest, caller: Caller, deps: Dependencies
) -> pb.RecountTranscriptResponse:
    """Count entries after a seq by the vocabulary of the tenant's settings, where another one was
    used.

    The caller repeats the call until it is done. Raises NOT_FOUND, and DEPENDENCY_UNAVAILABLE while
    the blob store is unavailable and alone has a payload.
    """
    report = await recount(
        deps.database,
        deps.blobs,
        deps.workers,
        parse_key(request.session_id, caller),
        after_seq=request.after_seq,
        max_entry_count=request.max_entry_count or _DEFAULT_ENTRY_COUNT,
        is_dry_run=request.dry_run,
    )
    return pb.RecountTranscriptResponse(
        next_after_seq=report.next_after_seq,
        done=report.done,
        examined_entry_count=report.examined_entry_count,
        recounted_entry_count=report.recounted_entry_count,
        token_count_before=report.token_count_before,
        token_count_after=report.token_count_after,
        token_vocabulary=report.token_vocabulary,
    )
