"""ListPlugins: list the tenant's plugins and the bundled ones that serve it."""

from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import render_plugin


async def list_plugins(
    _request: pb.ListPluginsRequest, caller: Caller, deps: Dependencies
) -> pb.ListPluginsResponse:
    """Return the plugins, highest priority first, then in the order of registration."""
    plugins = await deps.directory.read_all(caller.tenant_id)
    return pb.ListPluginsResponse(plugins=map(render_plugin, plugins))
