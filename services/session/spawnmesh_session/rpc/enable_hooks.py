"""EnableHooks. Calls the hook service for these hooks of the tenant from now on."""

from spawnmesh.session.v1 import tenant_service_pb2 as pb

from spawnmesh_session.domain.tenants import require_tenant
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_hooks
from spawnmesh_session.store import enabled_hooks


async def enable_hooks(request: pb.EnableHooksRequest, deps: Dependencies) -> pb.EnableHooksResponse:
    """Enable the hooks, which is durable on return. Raises UNKNOWN_TENANT."""
    tenant_id, hooks = request.tenant_id, parse_hooks(request.hooks)
    if not await enabled_hooks.add_hooks(deps.database, tenant_id, hooks):
        require_tenant(tenant_id, None)
    return pb.EnableHooksResponse()
