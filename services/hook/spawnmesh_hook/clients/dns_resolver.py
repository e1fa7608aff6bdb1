"""Resolves host names within bounds of our own.

Tenants choose the names, and the tenants' nameservers choose how long an answer takes.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from threading import Thread

from spawnmesh_hook.domain.endpoints import Address, literal_address

Resolve = Callable[[str], Iterable[Address]]
"""Blocks until the addresses of a name are known. Raises OSError if the name has none."""

TIMEOUT_SECONDS = 2.0
MAX_LOOKUPS_OF_TENANT = 4
MAX_LOOKUPS = 64

# Errors of the resolver, or of a machine without resources. They say nothing about the name.
_RESOLVER_ERRORS = frozenset({socket.EAI_AGAIN, socket.EAI_MEMORY, socket.EAI_SYSTEM})


class DnsLookupFailed(Exception):
    """The addresses of a name could not be determined. The text says why."""


@dataclass(frozen=True, slots=True)
class _Lookup:
    tenant_id: str | None
    ended: "asyncio.Future[tuple[Address, ...] | None]"


def resolve_with_system(host: str) -> Iterable[Address]:
    """Return the addresses that the system's resolver gives."""
    return [
        ip_address(sockaddr[0]) for *_, sockaddr in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    ]


class DnsResolver:
    """Looks up a name once at a time, for all callers that wait for it. Results are not cached.

    A lookup cannot be cancelled: it occupies a thread of its own until the system's resolver
    returns, even if no caller waits any more. A tenant has at most 4 lookups and all tenants
    together at most 64. Further callers wait within their own timeout.
    """

    def __init__(self, resolve: Resolve = resolve_with_system) -> None:
        self._resolve = resolve
        self._lookups: dict[str, _Lookup] = {}

    async def addresses_of(self, host: str, tenant_id: str | None) -> tuple[Address, ...]:
        """Return the addresses of the host; none if the name has no address.

        `tenant_id` is the tenant that chose the name, or None for the operator, which has no limit.
        Raises DnsLookupFailed after two seconds, and if the resolver fails.
        """
        literal = literal_address(host)
        if literal is not None:
            return (literal,)
        why = ""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while host not in self._lookups:
                    why, blocking = self._blocking_lookups(tenant_id)
                    if not blocking:
                        self._start(host, tenant_id)
                        break
                    await asyncio.wait(blocking, return_when=asyncio.FIRST_COMPLETED)
                why = "no answer of the resolver"
                addresses = await asyncio.shield(self._lookups[host].ended)
        except TimeoutError:
            raise DnsLookupFailed(f"{why} within {TIMEOUT_SECONDS:g} s") from None
        if addresses is None:
            raise DnsLookupFailed("the resolver failed")
        return addresses

    def _blocking_lookups(
        self, tenant_id: str | None
    ) -> tuple[str, list["asyncio.Future[tuple[Address, ...] | None]"]]:
        """Return the lookups of which one has to end before the tenant may start another, and why.

        The list is empty if the tenant may start one now.
        """
        if tenant_id is None:
            return "", []
        own = [lookup.ended for lookup in self._lookups.values() if lookup.tenant_id == tenant_id]
        if len(own) >= MAX_LOOKUPS_OF_TENANT:
            return f"the {len(own)} other lookups of this tenant, its maximum, did not end", own
        if len(self._lookups) >= MAX_LOOKUPS:
            return (
                f"the {len(self._lookups)} lookups of all tenants, the maximum, did not end",
                [lookup.ended for lookup in self._lookups.values()],
            )
        return "", []

    def _start(self, host: str, tenant_id: str | None) -> None:
        loop = asyncio.get_running_loop()
        lookup = _Lookup(tenant_id, loop.create_future())

        def end(addresses: tuple[Address, ...] | None) -> None:
            del self._lookups[host]
            lookup.ended.set_result(addresses)

        def resolve_in_thread() -> None:
            addresses = None
            try:
                addresses = self._resolve_now(host)
            finally:
                with suppress(RuntimeError):  # The loop is closed: no caller waits any more.
                    loop.call_soon_threadsafe(end, addresses)

        # A daemon thread, since the process would wait for the threads of a pool when it exits.
        Thread(target=resolve_in_thread, name="dns-lookup", daemon=True).start()
        self._lookups[host] = lookup

    def _resolve_now(self, host: str) -> tuple[Address, ...] | None:
        """Return the addresses, or None if the resolver failed."""
        try:
            return tuple(dict.fromkeys(self._resolve(host)))
        except socket.gaierror as error:
            return None if error.errno in _RESOLVER_ERRORS else ()
        except (OSError, ValueError):  # ValueError: the host has a label that no name can have.
            return ()
