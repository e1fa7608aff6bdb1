"""DeleteTenant. Starts the deletion of a tenant and returns when this is durable."""

from datetime import timedelta

from spawnmesh.session.v1.tenant_service_pb2 import DeleteTenantRequest, DeleteTenantResponse
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.tenants import Tenant
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_tenant
from spawnmesh_session.store import tenant_deletions, tenants, work_queue


async def delete_tenant(
    request: DeleteTenantRequest, caller: Caller, deps: Dependencies
) -> DeleteTenantResponse:
    """Make the deletion durable; `operations.tenant_purge` carries it out.

    From the commit on nothing begins in the tenant, and the purge finds what began before.
    """
    tenant_id = request.tenant_id
    async with deps.database.transaction(tenant_id) as connection:
        tenant = await tenants.get_tenant(connection, tenant_id)
        if tenant is None:
            raise not_found("tenant", tenant_id)
        if isinstance(tenant, Tenant) and await tenant_deletions.insert_tenant_deletion(
            connection, tenant_id
        ):
            await work_queue.insert_entry(
                connection, tenant_id, work_queue.PURGE, tenant_id, due_in=timedelta(0)
            )
        tenant = await tenants.get_tenant(connection, tenant_id)
    if tenant is None:
        raise not_found("tenant", tenant_id)
    return DeleteTenantResponse(tenant=render_tenant(tenant))
