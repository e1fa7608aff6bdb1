"""AdmitModelCall. Counts a model call of a run in all its budgets, and admits it."""

from spawnmesh.session.v1.budget_service_pb2 import AdmitModelCallRequest, AdmitModelCallResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.budgets import OpenModelCall
from spawnmesh_session.rpc.dependencies import Dependencies


async def admit_model_call(
    request: AdmitModelCallRequest, caller: Caller, deps: Dependencies
) -> AdmitModelCallResponse:
    """Admit the call if every budget has room. A repeat for an open call changes nothing."""
    call = OpenModelCall(
        call_id=request.call_id,
        session_id=request.session_id,
        run_id=request.run_id,
        largest_token_count=request.largest_token_count,
        largest_cost_micros=request.largest_cost_micros,
    )
    expires_in = request.expires_in.ToTimedelta()
    await deps.model_calls.admit(caller.tenant_id, call, expires_in, epoch=request.epoch)
    return AdmitModelCallResponse()
