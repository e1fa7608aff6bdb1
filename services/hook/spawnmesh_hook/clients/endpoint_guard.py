"""Checks endpoints that tenants chose before the mesh connects to them."""

from collections.abc import Awaitable, Callable

from spawnmesh_hook.clients.dns_resolver import DnsLookupFailed
from spawnmesh_hook.domain.endpoints import Address, Endpoint, EndpointRules, plain_refusal, refusal
from spawnmesh_hook.domain.errors import EndpointNotAllowed

ResolveForTenant = Callable[[str, str | None], Awaitable[tuple[Address, ...]]]
"""Returns the addresses of a host that the tenant, or for None the operator, chose.

Raises DnsLookupFailed.
"""


class EndpointGuard:
    """Checks an endpoint and its current addresses against the operator's rules."""

    def __init__(self, rules: EndpointRules, resolve: ResolveForTenant) -> None:
        self._rules = rules
        self._resolve = resolve

    async def addresses_of(
        self, endpoint: Endpoint, tenant_id: str, *, trusted: bool = False
    ) -> tuple[Address, ...]:
        """Return the addresses to connect to; none if the name has no address at present.

        Connect to these addresses, not to the name: the name may lead elsewhere a moment later. A
        `trusted` endpoint is the operator's own and is not checked. Raises EndpointNotAllowed, and
        DnsLookupFailed if the lookup fails and the name alone is allowed.
        """
        if trusted:
            return await self._resolve(endpoint.host, None)
        try:
            addresses = await self._resolve(endpoint.host, tenant_id)
        except DnsLookupFailed:
            self._check(endpoint, ())
            raise
        self._check(endpoint, addresses)
        return addresses

    def _check(self, endpoint: Endpoint, addresses: tuple[Address, ...]) -> None:
        why = plain_refusal(self._rules, endpoint, addresses) or refusal(
            self._rules, endpoint.host, addresses
        )
        if why is not None:
            raise EndpointNotAllowed(why)
