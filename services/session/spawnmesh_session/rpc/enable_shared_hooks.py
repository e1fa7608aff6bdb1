"""EnableSharedHooks. Calls the hook service for these hooks of all tenants from now on."""

from spawnmesh.session.v1 import tenant_service_pb2 as pb

from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_hooks
from spawnmesh_session.store import enabled_hooks


async def enable_shared_hooks(
    request: pb.EnableSharedHooksRequest, deps: Dependencies
) -> pb.EnableSharedHooksResponse:
    """Enable the hooks, which is durable on return."""
    await enabled_hooks.add_shared_hooks(deps.database, parse_hooks(request.hooks))
    return pb.EnableSharedHooksResponse()
