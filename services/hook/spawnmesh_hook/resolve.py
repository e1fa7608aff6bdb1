"""Where a host leads."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from spawnmesh_hook.domain.endpoints import Address, literal_address

Resolve = Callable[[str], Awaitable[tuple[Address, ...]]]

_RESOLVE_SECONDS = 2.0


async def resolve(host: str) -> tuple[Address, ...]:
    """The addresses of a host, by the system's resolver; none when the name leads nowhere or no answer comes within two seconds."""
    literal = literal_address(host)
    if literal is not None:
        return (literal,)
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError: a label that no name can have. TimeoutError is an OSError.
        return ()
    return tuple(dict.fromkeys(ip_address(sockaddr[0]) for *_, sockaddr in found))
