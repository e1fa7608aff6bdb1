"""Find the replicas behind a target, and connect to each of them."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from spawnmesh_client.connections import open_service
from spawnmesh_client.settings import ConnectionSettings
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_runtime.settings import address_parts

_FIXED_SCHEMES = ("ipv4:", "ipv6:")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one replica. `host` is the name in its certificate; '' if none is known."""

    target: str
    host: str = ""


async def addresses_of(target: str) -> list[Address]:
    """Return the address of each replica that the target names, in a fixed order.

    A target that cannot be resolved here is one address, which gRPC may resolve.
    """
    scheme, _, rest = target.partition(":")
    if f"{scheme}:" in _FIXED_SCHEMES:
        return [Address(f"{scheme}:{address}") for address in rest.split(",")]
    plain = target.removeprefix("dns:").rpartition("/")[2]
    try:
        host, port = address_parts(plain)
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return [Address(target)]
    return [Address(_target(*one), host) for one in sorted({one[4][:2] for one in found})]


def _target(ip: str | int, port: str | int) -> str:
    return f"ipv6:[{ip}]:{port}" if ":" in str(ip) else f"ipv4:{ip}:{port}"


@asynccontextmanager
async def open_replicas(
    peer: TokenPeer, name: str, target: str, token: str, settings: ConnectionSettings
) -> AsyncIterator[list[TokenPeer]]:
    """Open a channel to each replica for the block, with this token for its calls.

    For one address this is the channel of the peer.
    """
    addresses = await addresses_of(target)
    async with AsyncExitStack() as stack:
        if len(addresses) == 1:
            yield [TokenPeer(peer.connection, token)]
            return
        yield [
            TokenPeer(
                await stack.enter_async_context(
                    open_service(name, address.target, settings, certificate_host=address.host)
                ),
                token,
            )
            for address in addresses
        ]
