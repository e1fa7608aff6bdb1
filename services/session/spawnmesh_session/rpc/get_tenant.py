"""GetTenant. Returns one tenant, also a deleted one with the progress of its deletion."""

from spawnmesh.session.v1.tenant_service_pb2 import GetTenantRequest, GetTenantResponse
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_tenant
from spawnmesh_session.store import tenants


async def get_tenant(request: GetTenantRequest, caller: Caller, deps: Dependencies) -> GetTenantResponse:
    """Return the tenant, or the report of its deletion. Raise NOT_FOUND if there is neither."""
    async with deps.database.transaction(request.tenant_id) as connection:
        tenant = await tenants.get_tenant(connection, request.tenant_id)
    if tenant is None:
        raise not_found("tenant", request.tenant_id)
    return GetTenantResponse(tenant=render_tenant(tenant))
