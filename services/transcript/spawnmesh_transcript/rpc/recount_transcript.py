"""RecountTranscript.

Starts an operation that counts the tokens of entries again that were counted by another vocabulary
than that of the tenant's settings. `jobs/operation_steps.py` takes its steps.
"""

from functools import partial

from google.longrunning.operations_pb2 import Operation
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.operation_types import RECOUNT, new_operation
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key
from spawnmesh_transcript.store.transcripts import get_transcript


async def recount_transcript(
    request: pb.RecountTranscriptRequest, caller: Caller, deps: Dependencies
) -> Operation:
    """Start the operation, or return the one that the same call has started.

    Raises NOT_FOUND, REQUEST_ID_REUSED and OPERATION_COUNT_EXCEEDED.
    """
    key = parse_key(request.session_id, caller)
    check = partial(_require_transcript, deps.database, key)
    return await deps.operations.start(key.tenant_id, new_operation(RECOUNT, request, caller), check)


async def _require_transcript(database: Database, key: Key) -> None:
    async with database.transaction(key.tenant_id) as connection:
        await get_transcript(connection, key)
