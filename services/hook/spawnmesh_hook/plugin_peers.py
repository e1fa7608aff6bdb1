"""Connections to plugins, kept between calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address

import grpc
import grpc.aio
from spawnmesh_runtime.channel_options import peer_options
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.renewed_channel import RenewedChannel

from spawnmesh_hook.domain.endpoints import Address, Endpoint


@dataclass(slots=True)
class _Kept:
    peer: Peer
    users: int = 0


class PluginPeers:
    """One connection for each name and where it leads, shared by tenants; those in use and at most `max_idle` others stay open."""

    def __init__(self, process: Process, max_idle: int) -> None:
        self._process = process
        self._max_idle = max_idle
        self._kept: dict[tuple[str, str], _Kept] = {}  # the least recently used first
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def peer(self, endpoint: Endpoint, addresses: tuple[Address, ...]) -> AsyncIterator[Peer]:
        """A connection to where the endpoint leads, which was checked for this call."""
        kept = await self._use(_target(addresses, endpoint.port), _authority(endpoint))
        try:
            yield kept.peer
        finally:
            kept.users -= 1
            await self._close_idle(self._max_idle)

    async def close(self) -> None:
        """Closes all connections. Nobody is using them any more."""
        await self._close_idle(0)

    async def _use(self, target: str, authority: str) -> _Kept:
        async with self._opening:
            kept = self._kept.pop((target, authority), None)
            if kept is not None and not kept.users and _is_failing(kept.peer):
                await kept.peer.channel.close(None)
                kept = None
            if kept is None:
                kept = _Kept(Peer("plugin", self._channel(target, authority), self._process))
            kept.users += 1
            self._kept[target, authority] = kept
            return kept

    def _channel(self, target: str, authority: str) -> grpc.aio.Channel:
        """To addresses, in the name that the plugin has: it is that name which its certificate is good for."""
        files = self._process.tls
        options = [*peer_options(self._process.settings), ("grpc.default_authority", authority)]
        return RenewedChannel(target, files, options) if files else grpc.aio.insecure_channel(target, options=options)

    async def _close_idle(self, but: int) -> None:
        idle = [target for target, kept in self._kept.items() if kept.users == 0]
        closing = [self._kept.pop(target) for target in idle[: max(0, len(idle) - but)]]
        for kept in closing:
            await kept.peer.channel.close(None)


def _is_failing(peer: Peer) -> bool:
    """Whether it waits before it tries again to connect, while calls fail at once: a plugin that is back would not be reached until then."""
    return peer.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE


def _target(addresses: tuple[Address, ...], port: int) -> str:
    """All addresses of the first one's family, in gRPC's notation for addresses that need no look-up."""
    if isinstance(addresses[0], IPv4Address):
        return "ipv4:" + ",".join(f"{address}:{port}" for address in addresses if address.version == 4)
    return "ipv6:" + ",".join(f"[{address}]:{port}" for address in addresses if address.version == 6)


def _authority(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"
