"""CompactTranscript.

Starts an operation that summarizes what is no longer fresh. `jobs/operation_steps.py` takes its
steps.
"""

from google.longrunning.operations_pb2 import Operation
from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.compaction.summary_append import CompactionRequester
from spawnmesh_transcript.operations.operation_types import COMPACT, new_operation
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key
from spawnmesh_transcript.store.transcripts import get_transcript


async def compact_transcript(
    request: pb.CompactTranscriptRequest, caller: Caller, deps: Dependencies
) -> Operation:
    """Start the operation, or return the one that the same call has started.

    Raises NOT_FOUND, CONFLICT while a run writes the transcript, DEPENDENCY_UNAVAILABLE without
    router or hook service, REQUEST_ID_REUSED and OPERATION_COUNT_EXCEEDED.
    """
    key = parse_key(request.session_id, caller)

    async def check() -> None:
        await _require_no_writer(key, caller, deps)
        deps.compactor.compactor.peers()

    return await deps.operations.start(key.tenant_id, new_operation(COMPACT, request, caller), check)


async def _require_no_writer(key: Key, caller: Caller, deps: Dependencies) -> None:
    async with deps.database.transaction(key.tenant_id) as connection:
        transcript = await get_transcript(connection, key)
    CompactionRequester(None, caller.subject).require_writer(transcript.head)
