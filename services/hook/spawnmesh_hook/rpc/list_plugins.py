"""ListPlugins: list the tenant's plugins and the bundled ones that serve it, page by page."""

from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import render_plugin

_DEFAULT_PAGE_SIZE = 100


async def list_plugins(
    request: pb.ListPluginsRequest, caller: Caller, deps: Dependencies
) -> pb.ListPluginsResponse:
    """Return a page of the plugins, in the order in which they are called.

    Raises INVALID_REQUEST for a page token of another list.
    """
    last = position_of(request, (int, int), caller.tenant_id)
    size = request.page_size or _DEFAULT_PAGE_SIZE
    plugins = await deps.plugin_cache.read_all(caller.tenant_id)
    found = [plugin for plugin in plugins if last is None or plugin.place > last]
    page = found[:size]
    return pb.ListPluginsResponse(
        plugins=map(render_plugin, page),
        next_page_token=page_token(page[-1].place, request, caller.tenant_id) if len(found) > size else "",
    )
