"""PurgeTenant: delete all rows of a tenant, in pages."""

from spawnmesh.hook.v1 import tenant_hook_service_pb2 as pb
from spawnmesh_postgres import tenant_purges
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.store import plugins, tenants

PAGE_ROWS = 2_000
"""Rows deleted in one transaction, so that locks are held for a short time."""
_PAGES_PER_CALL = 20


async def purge_tenant(
    request: pb.PurgeTenantRequest, caller: Caller, deps: Dependencies
) -> pb.PurgeTenantResponse:
    """Delete up to 20 pages of rows. Call again until the response is `done`.

    From the first call on, no row is added for the tenant. Deletes nothing of a tenant with
    settings newer than the request's version, even if it is prepared meanwhile. Version 0 purges
    the tenant in any case.
    """
    tenant_id, version = caller.tenant_id, request.settings_version
    async with deps.database.transaction(tenant_id) as connection:
        await tenant_purges.block_writers(connection, tenant_id)
        current = await tenants.get_settings_version(connection, tenant_id)
        if not await tenant_purges.begin_purge(connection, tenant_id, version, current):
            return pb.PurgeTenantResponse(done=True)
    response = pb.PurgeTenantResponse()
    for _ in range(_PAGES_PER_CALL):
        async with deps.database.transaction(tenant_id) as connection:
            response.done = not await tenant_purges.lock_purge(connection, tenant_id, version)
            if response.done:
                return response
            page = await tenants.purge_page(connection, tenant_id, PAGE_ROWS)
            if page.plugin_count:
                await plugins.notify_plugins_changed(connection)
            if page.row_count < PAGE_ROWS:
                await tenants.delete_settings(connection, tenant_id)
                await tenant_purges.finish_purge(connection, tenant_id)
                response.done = True
        deps.directory.invalidate()
        response.deleted_row_count += page.row_count
        response.deleted_plugin_count += page.plugin_count
        if response.done:
            break
    return response
