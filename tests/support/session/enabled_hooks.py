"""Hooks as the hook service enables them."""

from spawnmesh.hook.v1.event_pb2 import HookKind
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.session.harness import Mesh


async def enable(mesh: Mesh, *hooks: HookKind.ValueType, tenant: str) -> None:
    """Call EnableHooks as the hook service does."""
    request = tenant_pb.EnableHooksRequest(tenant_id=tenant, hooks=hooks)
    with use_token(TokenMinter("hook", mesh.keys / "hook.pem").mesh_token()):
        await mesh.peer.unary(TenantServiceStub(mesh.peer.channel).EnableHooks, request, timeout_seconds=60)


async def enable_shared(mesh: Mesh, *hooks: HookKind.ValueType) -> None:
    """Call EnableSharedHooks as the hook service does."""
    request = tenant_pb.EnableSharedHooksRequest(hooks=hooks)
    call = TenantServiceStub(mesh.peer.channel).EnableSharedHooks
    with use_token(TokenMinter("hook", mesh.keys / "hook.pem").mesh_token()):
        await mesh.peer.unary(call, request, timeout_seconds=60)
