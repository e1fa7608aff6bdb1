"""Find out that a plugin does not answer, if it has a health service."""

import asyncio
from math import inf

import grpc
from spawnmesh_calls.renewable_channel import RenewableChannel
from spawnmesh_calls.silence_probe import SilenceProbe
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_runtime.peers import log_silence

# A plugin may get a health service with its next release.
_LOOK_AGAIN_SECONDS = 10.0


class PluginProbe(SilenceProbe):
    """A probe for a peer that is not one of the mesh's own services.

    It does nothing until a health check was answered with OK once: without a health service, a
    silent peer and a slow one look the same. Calls are left as soon as the peer is found silent,
    whether or not they may be repeated. While the peer is away, it gets three checks in a round of
    two to five seconds, and none once no call was wanted for half a minute: it may be away for
    ever. The next call then finds out again.
    """

    call_timeout_seconds = 0.0
    shortest_round_seconds = 2.0
    unused_seconds = 30.0
    """The time after the last call in which a plugin that is away gets checks."""

    def __init__(self, service: str, channel: RenewableChannel, *, has_health_service: bool = False) -> None:
        super().__init__(service, channel, log_silence)
        self.has_health_service = has_health_service
        self._wanted_at = -inf
        self._next_search = -inf

    def wanted(self) -> None:
        """Note that a call is about to be made. Look for the health service in the background."""
        self._wanted_at = now = monotonic_seconds()
        is_free = self._probing is None or self._probing.done()
        if not self.has_health_service and now >= self._next_search and is_free:
            self._next_search = now + _LOOK_AGAIN_SECONDS
            self._probing = asyncio.create_task(self._find_health_service())

    async def _find_health_service(self) -> None:
        self.has_health_service = await self._status() is grpc.StatusCode.OK

    async def _probe(self) -> None:
        if self.has_health_service:
            await super()._probe()

    def _is_wanted(self, away_since: float) -> bool:
        return monotonic_seconds() - max(self._wanted_at, away_since) < self.unused_seconds
