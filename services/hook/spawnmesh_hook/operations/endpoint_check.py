"""The check of an endpoint that a tenant gives: allowed, and reached unless that is not wanted."""

from spawnmesh_hook.clients.connectivity_probe import ConnectivityProbe
from spawnmesh_hook.clients.dns_resolver import DnsLookupFailed
from spawnmesh_hook.clients.endpoint_guard import EndpointGuard
from spawnmesh_hook.domain.endpoints import Endpoint
from spawnmesh_hook.domain.errors import EndpointNotReached


async def check_endpoint(
    endpoint: Endpoint, tenant_id: str, guard: EndpointGuard, probe: ConnectivityProbe, *, must_connect: bool
) -> None:
    """Raise EndpointNotAllowed, and EndpointNotReached if something must answer there now."""
    try:
        addresses = await guard.addresses_of(endpoint, tenant_id)
    except DnsLookupFailed as error:
        if must_connect:
            raise EndpointNotReached(f"the DNS lookup of its name failed: {error}") from None
        return
    if must_connect:
        await probe.check(endpoint, addresses)
