"""Calls of the session service: which hooks it has to call this service for."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from spawnmesh.hook.v1.event_pb2 import HookKind as HookKindProto
from spawnmesh.session.v1 import tenant_service_pb2 as pb
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_core.errors import MeshError, error_label
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.tokens import TokenMinter

from spawnmesh_hook.domain.plugins import HookKind

_PAUSE_SECONDS = 0.5

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SessionHooks:
    """The hooks for which the session service calls this one."""

    peer: Peer
    minter: TokenMinter

    async def enable_hooks(self, tenant_id: str, hooks: Iterable[HookKind]) -> None:
        """Enable the hooks of the tenant, which is durable on return. Raises UNKNOWN_TENANT."""
        request = pb.EnableHooksRequest(tenant_id=tenant_id, hooks=_rendered(hooks))
        # A token with a tenant is for plugins: services accept none of the hook service.
        with use_token(self.minter.mesh_token()):
            await self.peer.unary(TenantServiceStub(self.peer.channel).EnableHooks, request)

    async def enable_shared_hooks(self, hooks: Iterable[HookKind]) -> None:
        """Enable the hooks of all tenants: those of the operator's plugins.

        The session service leaves no hook out before it was called once, even without a hook. Tries
        again until it succeeds; the first error is logged.
        """
        request = pb.EnableSharedHooksRequest(hooks=_rendered(hooks))
        enable, is_reported = TenantServiceStub(self.peer.channel).EnableSharedHooks, False
        while True:
            try:
                with use_token(self.minter.mesh_token()):
                    await self.peer.unary(enable, request)
            except MeshError as error:
                if not is_reported:
                    log.warning("hooks_not_enabled", error=error_label(error))
                is_reported = True
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return


def _rendered(hooks: Iterable[HookKind]) -> list[HookKindProto.ValueType]:
    return [HookKindProto.Value(f"HOOK_KIND_{hook}") for hook in hooks]


@asynccontextmanager
async def open_session(process: Process, target: str | None) -> AsyncIterator[SessionHooks | None]:
    """Open the connection. Give None without a target, which is logged.

    Raises SystemExit with one line if the process has no key to call the session service with.
    """
    if not target:
        log.warning("hooks_not_enabled", missing="session_target")
        yield None
        return
    if process.minter is None:
        raise SystemExit(f"{process.service}: signing_key_file is needed to call the session service")
    async with open_peer(process, "session", target, is_dependency=False) as peer:
        yield SessionHooks(peer, process.minter)
