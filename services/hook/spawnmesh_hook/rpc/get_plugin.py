"""GetPlugin: return one plugin that serves the tenant."""

from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import render_plugin


async def get_plugin(
    request: pb.GetPluginRequest, caller: Caller, deps: Dependencies
) -> pb.GetPluginResponse:
    """Return the plugin. Raises NOT_FOUND."""
    for plugin in await deps.plugin_cache.read_all(caller.tenant_id):
        if plugin.name == request.name:
            return pb.GetPluginResponse(plugin=render_plugin(plugin))
    raise not_found("plugin", request.name)
