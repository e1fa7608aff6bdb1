"""Stands between a tenant's choice of endpoint and the network."""

from spawnmesh_hook.domain.endpoints import Address, Endpoint, EndpointRules, refusal
from spawnmesh_hook.errors import EndpointNotAllowed
from spawnmesh_hook.resolve import Resolve


class EndpointGuard:
    """Checks endpoints against the operator's rules, by where they lead at the time."""

    def __init__(self, rules: EndpointRules, resolve: Resolve) -> None:
        self._rules = rules
        self._resolve = resolve

    async def addresses_of(self, endpoint: Endpoint, *, trusted: bool = False) -> tuple[Address, ...]:
        """The addresses that may be dialled; none when the name leads nowhere at present. A `trusted` endpoint is the operator's own choice.

        Whoever dials has to dial these and not the name: that could lead elsewhere a moment later. Raises EndpointNotAllowed.
        """
        addresses = await self._resolve(endpoint.host)
        why = None if trusted else refusal(self._rules, endpoint.host, addresses)
        if why is not None:
            raise EndpointNotAllowed(why)
        return addresses
