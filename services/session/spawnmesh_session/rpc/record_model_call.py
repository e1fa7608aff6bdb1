"""RecordModelCall. Counts what a model call has used, once."""

from spawnmesh.session.v1.budget_service_pb2 import RecordModelCallRequest, RecordModelCallResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.dependencies import Dependencies


async def record_model_call(
    request: RecordModelCallRequest, caller: Caller, deps: Dependencies
) -> RecordModelCallResponse:
    """Count the use of an open call. A call that is not open changes nothing."""
    await deps.model_calls.record(caller.tenant_id, request.call_id, request.token_count, request.cost_micros)
    return RecordModelCallResponse()
