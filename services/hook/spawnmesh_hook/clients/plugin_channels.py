"""A pool of gRPC channels to plugins."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address

import grpc
import grpc.aio
from spawnmesh_calls.channel_options import peer_options
from spawnmesh_calls.renewable_channel import RenewableChannel
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.plugin_probe import PluginProbe
from spawnmesh_runtime.process import Process

from spawnmesh_hook.domain.call_failures import MAX_ANSWER_BYTES
from spawnmesh_hook.domain.endpoints import Address, Endpoint


@dataclass(slots=True)
class _PooledPeer:
    peer: Peer
    probe: PluginProbe
    users: int = 0

    async def close(self) -> None:
        await self.probe.close()
        await self.peer.channel.close(None)


class PluginChannelPool:
    """Holds one channel for each name and its addresses, shared by all tenants.

    Channels in use and at most `max_idle` others stay open. Each has a probe, which finds a plugin
    silent if its health service has answered once on the channel. The probe dials the addresses of
    the channel and no others.
    """

    def __init__(self, process: Process, max_idle: int) -> None:
        self._process = process
        self._max_idle = max_idle
        self._pool: dict[tuple[str, str], _PooledPeer] = {}  # The least recently used come first.
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def use(self, endpoint: Endpoint, addresses: tuple[Address, ...]) -> AsyncIterator[Peer]:
        """Give a channel to the addresses, which were checked for this call, for the block."""
        pooled = await self._acquire(_target(addresses, endpoint.port), _authority(endpoint))
        try:
            yield pooled.peer
        finally:
            pooled.users -= 1
            await self._close_idle(self._max_idle)

    async def close(self) -> None:
        """Close all channels. No call uses them any more."""
        await self._close_idle(0)

    async def _acquire(self, target: str, authority: str) -> _PooledPeer:
        async with self._opening:
            pooled = self._pool.pop((target, authority), None)
            had_health_service = False
            if pooled is not None and not pooled.users and _is_failing(pooled):
                had_health_service = pooled.probe.has_health_service
                await pooled.close()
                pooled = None
            if pooled is None:
                pooled = self._open(target, authority, had_health_service)
            pooled.users += 1
            pooled.probe.wanted()
            self._pool[target, authority] = pooled
            return pooled

    def _open(self, target: str, authority: str, has_health_service: bool) -> _PooledPeer:
        channel = self._channel(target, authority)
        probe = PluginProbe(f"plugin at {authority}", channel, has_health_service=has_health_service)
        return _PooledPeer(Peer("plugin", channel, self._process, probe), probe)

    def _channel(self, target: str, authority: str) -> RenewableChannel:
        """Open a channel to addresses, but with the plugin's name, which its certificate proves."""
        limit = "grpc.max_receive_message_length"
        options = [
            *(
                option
                for option in peer_options(self._process.settings.max_message_bytes)
                if option[0] != limit
            ),
            (limit, MAX_ANSWER_BYTES),
            ("grpc.default_authority", authority),
        ]
        return RenewableChannel(target, self._process.tls, options)

    async def _close_idle(self, max_idle: int) -> None:
        idle = [key for key, pooled in self._pool.items() if pooled.users == 0]
        closing = [self._pool.pop(key) for key in idle[: max(0, len(idle) - max_idle)]]
        for pooled in closing:
            await pooled.close()


def _is_failing(pooled: _PooledPeer) -> bool:
    """Return whether the channel is in its connection backoff, in which calls fail at once.

    A plugin that has come back could not be called until that backoff ends. If the plugin is
    silent, its probe goes on connecting.
    """
    state = pooled.peer.channel.get_state()
    return state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not pooled.probe.is_away


def _target(addresses: tuple[Address, ...], port: int) -> str:
    """Return all addresses of the first address's family, in gRPC's notation that needs no DNS."""
    if isinstance(addresses[0], IPv4Address):
        return "ipv4:" + ",".join(f"{address}:{port}" for address in addresses if address.version == 4)
    return "ipv6:" + ",".join(f"[{address}]:{port}" for address in addresses if address.version == 6)


def _authority(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"
