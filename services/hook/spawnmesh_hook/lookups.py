"""Where names lead. Tenants choose the names and their nameservers how long an answer takes, so that a look-up has bounds of our own."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from threading import Thread

from spawnmesh_hook.domain.endpoints import Address, literal_address

LookUp = Callable[[str], Iterable[Address]]
"""The addresses of a name, however long that takes; OSError where there are none."""

WAIT_SECONDS = 2.0
MOST_OF_A_TENANT = 4
MOST_OF_ALL = 64

# Of a resolver that does not answer, or a machine that has run out of something: they tell nothing of the name.
_OUR_OWN = frozenset({socket.EAI_AGAIN, socket.EAI_MEMORY, socket.EAI_SYSTEM})


class NotLookedUp(Exception):
    """Where a name leads was not found out; the text says why."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    tenant_id: str | None
    ended: "asyncio.Future[tuple[Address, ...] | None]"


def ask_system(host: str) -> Iterable[Address]:
    """By the system's resolver."""
    return [ip_address(sockaddr[0]) for *_, sockaddr in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


class Lookups:
    """One at a time for a name, which all who ask for it wait for, and nothing is kept.

    Nobody can end a look-up: each has a thread of its own until the resolver is done, also when nobody waits for it any more. A tenant has four
    of them at most, all tenants 64; those beyond wait in their own time.
    """

    def __init__(self, look_up: LookUp = ask_system) -> None:
        self._look_up = look_up
        self._under_way: dict[str, _UnderWay] = {}

    async def addresses_of(self, host: str, tenant_id: str | None) -> tuple[Address, ...]:
        """No addresses where the name leads nowhere. `tenant_id` is whose choice it is; None for the operator's, of which there are few.

        Raises NotLookedUp after two seconds, and where the resolver fails.
        """
        literal = literal_address(host)
        if literal is not None:
            return (literal,)
        why = ""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while host not in self._under_way:
                    why, ahead = self._ahead_of(tenant_id)
                    if not ahead:
                        self._begin(host, tenant_id)
                        break
                    await asyncio.wait(ahead, return_when=asyncio.FIRST_COMPLETED)
                why = "no answer of the resolver"
                addresses = await asyncio.shield(self._under_way[host].ended)
        except TimeoutError:
            raise NotLookedUp(f"{why} within {WAIT_SECONDS:g} s") from None
        if addresses is None:
            raise NotLookedUp("the resolver cannot tell at present")
        return addresses

    def _ahead_of(self, tenant_id: str | None) -> tuple[str, list["asyncio.Future[tuple[Address, ...] | None]"]]:
        """Those of which one has to end before the tenant may have another, and why; none where it may."""
        if tenant_id is None:
            return "", []
        own = [one.ended for one in self._under_way.values() if one.tenant_id == tenant_id]
        if len(own) >= MOST_OF_A_TENANT:
            return f"the {len(own)} other look-ups of this tenant, as many as it may have, left no room", own
        if len(self._under_way) >= MOST_OF_ALL:
            return "the look-ups of all tenants left no room", [one.ended for one in self._under_way.values()]
        return "", []

    def _begin(self, host: str, tenant_id: str | None) -> None:
        loop = asyncio.get_running_loop()
        under_way = _UnderWay(tenant_id, loop.create_future())

        def end(addresses: tuple[Address, ...] | None) -> None:
            del self._under_way[host]
            under_way.ended.set_result(addresses)

        def run() -> None:
            addresses = None
            try:
                addresses = self._looked_up(host)
            finally:
                with suppress(RuntimeError):  # The loop is closed, and nobody waits any more.
                    loop.call_soon_threadsafe(end, addresses)

        # Not of a pool: that would have the process wait for it at its end.
        Thread(target=run, name="look-up", daemon=True).start()
        self._under_way[host] = under_way

    def _looked_up(self, host: str) -> tuple[Address, ...] | None:
        """None where the resolver failed."""
        try:
            return tuple(dict.fromkeys(self._look_up(host)))
        except socket.gaierror as error:
            return None if error.errno in _OUR_OWN else ()
        except (OSError, ValueError):  # ValueError: a label that no name can have.
            return ()
