"""Follow the call limits of the session service, so that this process acts on them.

While the session service cannot be reached, the limits that are known hold. A process that starts
meanwhile has the default limits for all tenants.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from spawnmesh.session.v1 import tenant_service_pb2 as pb
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh.tenancy.v1.call_limits_pb2 import CallLimits as Limits
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import error_label

from spawnmesh_runtime.call_limits import CallLimits, OwnLimits
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.rpc_class import RpcClass
from spawnmesh_runtime.tokens import TokenMinter

# A stream ends before, and the token of the call, too.
_STREAM_TIMEOUT_SECONDS = 290.0
# The service sends a message every three seconds.
_QUIET_SECONDS = 4.0
_PAUSE_SECONDS = 0.5

log = structlog.get_logger()


def own_limits(message: Limits) -> OwnLimits:
    """Return the limits that the message sets."""
    return {
        RpcClass(field.name.upper()): {part.name: value for part, value in limits.ListFields()}
        for field, limits in message.ListFields()
        if limits.ListFields()
    }


class CallLimitsFollower:
    """Reads the stream of the session service again and again."""

    def __init__(self, peer: Peer, minter: TokenMinter, limits: CallLimits) -> None:
        self._peer = peer
        self._stub = TenantServiceStub(peer.channel)
        self._minter = minter
        self._limits = limits
        self._is_reported = False

    async def follow_forever(self) -> None:
        """Follow the limits. Errors are retried; the first of an outage is logged."""
        while True:
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - the next try may succeed, whatever the error
                raise_if_cancelled()
                if not self._is_reported:
                    log.warning("call_limits_not_followed", error=error_label(error))
                self._is_reported = True
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self) -> None:
        first: dict[str, OwnLimits] | None = {}
        with use_token(self._minter.mesh_token()):
            messages = self._peer.stream(
                self._stub.WatchCallLimits,
                pb.WatchCallLimitsRequest(),
                timeout_seconds=_STREAM_TIMEOUT_SECONDS,
                quiet_seconds=_QUIET_SECONDS,
            )
            async for message in messages:
                changed = {one.tenant_id: own_limits(one.limits) for one in message.limits}
                if first is None:
                    for tenant_id, own in changed.items():
                        self._limits.set_tenant(tenant_id, own)
                    continue
                first.update(changed)
                if message.is_complete:
                    self._limits.replace_all(first)
                    first, self._is_reported = None, False


@asynccontextmanager
async def following_call_limits(process: Process, session_target: str | None) -> AsyncIterator[None]:
    """Let the limits of tenants hold in this process during the block, soon after its begin.

    Raises SystemExit with one line if the process has no key to call the session service with.
    Without a target, all tenants have the default limits, and the process logs it.
    """
    if not session_target:
        log.warning("call_limits_not_followed", missing="session_target")
        yield
        return
    if process.minter is None:
        raise SystemExit(f"{process.service}: signing_key_file is needed to follow call limits")
    async with open_peer(process, "session", session_target, is_dependency=False) as peer:
        follower = CallLimitsFollower(peer, process.minter, process.call_limits)
        task = asyncio.create_task(follower.follow_forever(), name="follow call limits")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
