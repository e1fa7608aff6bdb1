"""PausePlugin: stop calling a plugin until it is resumed."""

from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.errors import NameIsBundled
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import render_plugin
from spawnmesh_hook.store import plugins


async def pause_plugin(
    request: pb.PausePluginRequest, caller: Caller, deps: Dependencies
) -> pb.PausePluginResponse:
    """Pause the plugin and return it. Raises NameIsBundled and NOT_FOUND."""
    if deps.bundled.serves(caller.tenant_id, request.name):
        raise NameIsBundled(request.name)
    async with deps.database.transaction(caller.tenant_id) as connection:
        plugin = await plugins.set_paused(connection, caller.tenant_id, request.name, paused=True)
        await plugins.notify_plugins_changed(connection)
    deps.plugin_cache.invalidate()
    return pb.PausePluginResponse(plugin=render_plugin(plugin))
