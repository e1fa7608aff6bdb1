"""EnableHooks. Calls the hook service for these hooks, of a tenant or of all, from now on."""

from spawnmesh.hook.v1.event_pb2 import HookKind
from spawnmesh.session.v1 import tenant_service_pb2 as pb

from spawnmesh_session.domain.tenants import require_tenant
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import enabled_hooks


async def enable_hooks(request: pb.EnableHooksRequest, deps: Dependencies) -> pb.EnableHooksResponse:
    """Enable the hooks, which is durable on return. Raises UNKNOWN_TENANT."""
    hooks = [HookKind.Name(hook).removeprefix("HOOK_KIND_") for hook in request.hooks]
    if not request.tenant_id:
        await enabled_hooks.enable_shared_hooks(deps.database, hooks)
    elif not await enabled_hooks.enable_hooks(deps.database, request.tenant_id, hooks):
        require_tenant(request.tenant_id, None)
    return pb.EnableHooksResponse()
