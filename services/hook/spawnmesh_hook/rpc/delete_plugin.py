"""DeletePlugin: delete a plugin of the tenant."""

from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.errors import NameIsBundled, check_etag
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.store import outbox, plugins


async def delete_plugin(
    request: pb.DeletePluginRequest, caller: Caller, deps: Dependencies
) -> pb.DeletePluginResponse:
    """Delete the plugin if it exists, with its undelivered events.

    If a bundled plugin shadows the tenant's plugin, the bundled one receives those events. Raises
    NameIsBundled if only a bundled plugin has the name, and EtagDiffers.
    """
    tenant_id, name = caller.tenant_id, request.name
    async with deps.database.transaction(tenant_id) as connection:
        if request.etag:
            current = await plugins.lock_plugin(connection, tenant_id, name)
            if current is not None:
                check_etag("etag", request.etag, current)
        existed = await plugins.delete_plugin(connection, tenant_id, name)
        if not deps.bundled.serves(tenant_id, name):
            await outbox.delete_deliveries_of_plugin(connection, tenant_id, name)
        elif not existed:
            raise NameIsBundled(name)
        await plugins.notify_plugins_changed(connection)
    deps.plugin_cache.invalidate()
    return pb.DeletePluginResponse()
