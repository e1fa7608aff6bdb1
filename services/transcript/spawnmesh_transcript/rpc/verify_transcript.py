"""VerifyTranscript. Checks entries against the hash chain and streams how far they are intact."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh.transcript.v1 import integrity_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.verification import Mismatch, MismatchCause
from spawnmesh_transcript.operations.callers import readable_key
from spawnmesh_transcript.operations.verification.verify import Verified
from spawnmesh_transcript.operations.verification.verify import verify_transcript as verify_pages
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_fence, render_fence

_CAUSES = {cause: pb.MismatchCause.Value(f"MISMATCH_CAUSE_{cause}") for cause in MismatchCause}


async def verify_transcript(
    request: pb.VerifyTranscriptRequest, caller: Caller, deps: Dependencies
) -> AsyncGenerator[pb.VerifyTranscriptResponse, None]:
    """Send the position reached after each page, and last whether the transcript is intact.

    Raises NOT_FOUND, DEPENDENCY_UNAVAILABLE if the blob store is needed and unavailable,
    and POOL_EXHAUSTED.
    """
    key = await readable_key(deps.database, request.session_id, caller)
    start = parse_fence(request.after) if request.HasField("after") else None
    async with aclosing(verify_pages(deps.database, deps.blobs, deps.bulk_threads, key, start)) as results:
        async for result in results:
            deps.verification.report(key, result)
            yield _render(result)


def _render(result: Verified | Mismatch) -> pb.VerifyTranscriptResponse:
    if isinstance(result, Mismatch):
        cause = _CAUSES[result.cause]
        mismatch = pb.Mismatch(seq=result.seq, entry_id=result.entry_id, cause=cause)
        return pb.VerifyTranscriptResponse(mismatch=mismatch)
    fence = render_fence(result.fence)
    if result.is_complete:
        return pb.VerifyTranscriptResponse(intact=fence)
    return pb.VerifyTranscriptResponse(verified=fence)
