"""DeleteTenant. Starts the deletion of a tenant and returns when this is durable."""

from spawnmesh.session.v1.tenant_service_pb2 import DeleteTenantRequest, DeleteTenantResponse
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.jobs import store as jobs
from spawnmesh_postgres.jobs.job import NewJob
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.job_kinds import PURGE_TENANT
from spawnmesh_session.domain.tenants import Tenant
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_tenant
from spawnmesh_session.store import tenant_deletions, tenants


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
            await jobs.reschedule(connection, tenant_id, NewJob(PURGE_TENANT, tenant_id))
        tenant = await tenants.get_tenant(connection, tenant_id)
    if tenant is None:
        raise not_found("tenant", tenant_id)
    return DeleteTenantResponse(tenant=render_tenant(tenant))
