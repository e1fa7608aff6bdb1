"""DeleteSession. Deletes the session and its descendants."""

from spawnmesh.session.v1.session_service_pb2 import DeleteSessionRequest, DeleteSessionResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.dependencies import Dependencies


async def delete_session(
    request: DeleteSessionRequest, caller: Caller, deps: Dependencies
) -> DeleteSessionResponse:
    """Delete the session and its descendants; kill their live runs."""
    result = await deps.deleter.delete(caller.tenant_id, request.session_id)
    return DeleteSessionResponse(
        deleted_session_count=result.session_count, killed_run_count=result.killed_run_count
    )
