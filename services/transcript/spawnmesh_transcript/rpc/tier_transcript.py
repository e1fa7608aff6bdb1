"""TierTranscript.

Starts an operation that moves large payloads of a transcript between the database and the blob
store. `jobs/operation_steps.py` takes its steps.
"""

from functools import partial

from google.longrunning.operations_pb2 import Operation
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.operations.operation_types import TIER, new_operation
from spawnmesh_transcript.operations.tier_report import ACTIONS
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key


async def tier_transcript(request: pb.TierTranscriptRequest, caller: Caller, deps: Dependencies) -> Operation:
    """Start the operation, or return the one that the same call has started.

    Raises NOT_FOUND, TIER_DISABLED, DEPENDENCY_UNAVAILABLE without a blob store, REQUEST_ID_REUSED
    and OPERATION_COUNT_EXCEEDED.
    """
    key = parse_key(request.session_id, caller)
    check = partial(deps.tiering.check, key, ACTIONS[request.action])
    return await deps.operations.start(key.tenant_id, new_operation(TIER, request, caller), check)
