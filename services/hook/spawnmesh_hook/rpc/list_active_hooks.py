"""ListActiveHooks: list the hooks that a run has to dispatch."""

from spawnmesh.hook.v1 import run_hook_service_pb2 as pb
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import render_hooks

_DEFAULT_PAGE_SIZE = 100
"""More than there are hooks: a run that asks for no size gets all of them at once."""


async def list_active_hooks(
    request: pb.ListActiveHooksRequest, caller: Caller, deps: Dependencies
) -> pb.ListActiveHooksResponse:
    """Return a page of the hooks that at least one active plugin of the tenant is registered for.

    Raises INVALID_REQUEST for a page token of another list.
    """
    last = position_of(request, (int,), caller.tenant_id, caller.session_id)
    size = request.page_size or _DEFAULT_PAGE_SIZE
    hooks = sorted(render_hooks(await deps.plugin_cache.active_hooks(caller.tenant_id)))
    found = [hook for hook in hooks if last is None or hook > last[0]]
    response = pb.ListActiveHooksResponse(hooks=found[:size])
    if len(found) > size:
        end = found[size - 1]
        response.next_page_token = page_token([int(end)], request, caller.tenant_id, caller.session_id)
    return response
