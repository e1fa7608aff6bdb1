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
    page_count = 0
    for table in tenants.PURGED_TABLES:
        row_count = PAGE_ROWS
        while row_count == PAGE_ROWS:
            if page_count == _PAGES_PER_CALL:
                return response
            deleted = await _delete_page(tenant_id, version, table, deps)
            if deleted is None:
                response.done = True
                return response
            row_count = deleted
            page_count += row_count > 0
            response.deleted_row_count += row_count
            if table == "plugins":
                response.deleted_plugin_count += row_count
    async with deps.database.transaction(tenant_id) as connection:
        if await tenant_purges.lock_purge(connection, tenant_id, version):
            await tenants.delete_settings(connection, tenant_id)
            await tenant_purges.finish_purge(connection, tenant_id)
    response.done = True
    return response


async def _delete_page(tenant_id: str, version: int, table: str, deps: Dependencies) -> int | None:
    """Delete a page of the table and return its rows, or None if the purge is over."""
    async with deps.database.transaction(tenant_id) as connection:
        if not await tenant_purges.lock_purge(connection, tenant_id, version):
            return None
        row_count = await tenants.purge_rows(connection, tenant_id, table, PAGE_ROWS)
        if table == "plugins" and row_count:
            await plugins.notify_plugins_changed(connection)
    if table == "plugins":
        deps.directory.invalidate()
    return row_count
