"""Stands between a tenant's choice of endpoint and the network."""

from collections.abc import Awaitable, Callable

from spawnmesh_hook.domain.endpoints import Address, Endpoint, EndpointRules, refusal
from spawnmesh_hook.errors import EndpointNotAllowed
from spawnmesh_hook.lookups import NotLookedUp

Resolve = Callable[[str, str | None], Awaitable[tuple[Address, ...]]]
"""The addresses of a host for the tenant whose choice it is, None for the operator's. Raises NotLookedUp."""


class EndpointGuard:
    """Checks endpoints against the operator's rules, by where they lead at the time."""

    def __init__(self, rules: EndpointRules, resolve: Resolve) -> None:
        self._rules = rules
        self._resolve = resolve

    async def addresses_of(self, endpoint: Endpoint, tenant_id: str, *, trusted: bool = False) -> tuple[Address, ...]:
        """The addresses that may be dialled; none when the name leads nowhere at present. A `trusted` endpoint is the operator's own choice.

        Whoever dials has to dial these and not the name: that could lead elsewhere a moment later. Raises EndpointNotAllowed; and NotLookedUp,
        where the name by itself is allowed.
        """
        if trusted:
            return await self._resolve(endpoint.host, None)
        try:
            addresses = await self._resolve(endpoint.host, tenant_id)
        except NotLookedUp:
            self._check(endpoint, ())
            raise
        self._check(endpoint, addresses)
        return addresses

    def _check(self, endpoint: Endpoint, addresses: tuple[Address, ...]) -> None:
        why = refusal(self._rules, endpoint.host, addresses)
        if why is not None:
            raise EndpointNotAllowed(why)
