"""PurgeTenant: delete the policy, the usage and the cooldowns of a tenant."""

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_postgres import tenant_purges
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.store import budgets, cooldowns, policies


async def purge_tenant(
    request: pb.PurgeTenantRequest, caller: Caller, deps: Dependencies
) -> pb.PurgeTenantResponse:
    """Delete the tenant's rows, of which there are few, and store none from now on.

    Deletes nothing of a tenant whose settings are newer than the request's version. Version 0 means
    any tenant.
    """
    tenant_id, version = caller.tenant_id, request.settings_version
    deleted = 0
    async with deps.database.transaction(tenant_id) as connection:
        await tenant_purges.block_writers(connection, tenant_id)
        current = await policies.get_settings_version(connection, tenant_id)
        if await tenant_purges.begin_purge(connection, tenant_id, version, current):
            deleted += await policies.delete_policy(connection, tenant_id)
            deleted += await budgets.delete_periods(connection, tenant_id)
            deleted += await cooldowns.delete_cooldowns(connection, tenant_id)
            await cooldowns.notify_cooldowns(connection)
            await tenant_purges.finish_purge(connection, tenant_id)
    deps.policies.evict(tenant_id)
    deps.cooldowns.evict(tenant_id)
    return pb.PurgeTenantResponse(done=True, deleted_row_count=deleted)
