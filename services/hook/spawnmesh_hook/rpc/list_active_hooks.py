"""ListActiveHooks: list the hooks that a run has to dispatch."""

from spawnmesh.hook.v1 import run_hook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import render_hooks


async def list_active_hooks(
    _request: pb.ListActiveHooksRequest, caller: Caller, deps: Dependencies
) -> pb.ListActiveHooksResponse:
    """Return the hooks that at least one active plugin of the tenant is registered for."""
    hooks = await deps.directory.active_hooks(caller.tenant_id)
    return pb.ListActiveHooksResponse(hooks=render_hooks(hooks))
