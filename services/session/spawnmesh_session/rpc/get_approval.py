"""GetApproval. Returns one approval."""

from spawnmesh.session.v1.approval_service_pb2 import GetApprovalRequest, GetApprovalResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.approval_messages import render_approval
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import approvals


async def get_approval(
    request: GetApprovalRequest, caller: Caller, deps: Dependencies
) -> GetApprovalResponse:
    """Return the approval. Raise NOT_FOUND if the tenant has none with this id."""
    async with deps.database.transaction(caller.tenant_id) as connection:
        found = await approvals.get_approval(connection, caller.tenant_id, request.approval_id)
    return GetApprovalResponse(approval=render_approval(found))
