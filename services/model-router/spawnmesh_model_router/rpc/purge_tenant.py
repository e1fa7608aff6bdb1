"""PurgeTenant: delete the policy and the usage of a tenant, page by page."""

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.store import budgets, policies, tenants

_PAGE_ROWS = 2_000  # Bounds how long one call holds its locks.


async def purge_tenant(
    request: pb.PurgeTenantRequest, caller: Caller, deps: Dependencies
) -> pb.PurgeTenantResponse:
    """Delete a page of the tenant's rows, and store no usage of it from now on.

    `done` is true once no row is left. Deletes nothing of a tenant whose settings are newer than
    the request's version, also if PrepareTenant stores them during the purge. Version 0 means any
    tenant.
    """
    tenant_id, version = caller.tenant_id, request.settings_version
    async with deps.database.transaction(tenant_id) as connection:
        if not await tenants.begin_purge(connection, tenant_id, version):
            return pb.PurgeTenantResponse(done=True)
        deleted = await policies.delete_policy(connection, tenant_id)
    deps.policies.evict(tenant_id)
    async with deps.database.transaction(tenant_id) as connection:
        if not await tenants.lock_purge(connection, tenant_id, version):
            return pb.PurgeTenantResponse(done=True, deleted_row_count=deleted)
        periods = await budgets.purge_periods(connection, tenant_id, _PAGE_ROWS)
        if periods < _PAGE_ROWS:
            await tenants.end_purge(connection, tenant_id)
    return pb.PurgeTenantResponse(done=periods < _PAGE_ROWS, deleted_row_count=deleted + periods)
