"""ResumePlugin: call a paused plugin again, with a closed circuit breaker."""

from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.errors import NameIsBundled
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import render_plugin
from spawnmesh_hook.store import outbox, plugins


async def resume_plugin(
    request: pb.ResumePluginRequest, caller: Caller, deps: Dependencies
) -> pb.ResumePluginResponse:
    """Resume the plugin and return it. It receives the events that were held for it.

    Raises NameIsBundled and NOT_FOUND.
    """
    if deps.bundled.serves(caller.tenant_id, request.name):
        raise NameIsBundled(request.name)
    async with deps.database.transaction(caller.tenant_id) as connection:
        plugin = await plugins.set_paused(connection, caller.tenant_id, request.name, paused=False)
        await outbox.release_held_deliveries(connection, caller.tenant_id, request.name)
        await plugins.notify_plugins_changed(connection)
    deps.plugin_cache.invalidate()
    return pb.ResumePluginResponse(plugin=render_plugin(plugin))
