"""Whether anybody answers at a plugin's endpoint."""

import asyncio
import ssl

from spawnmesh_hook.domain.endpoints import Endpoint
from spawnmesh_hook.endpoint_guard import EndpointGuard
from spawnmesh_hook.errors import EndpointNotReached

_REACH_SECONDS = 3.0


async def check_reachable(guard: EndpointGuard, tls: ssl.SSLContext, endpoint: Endpoint) -> None:
    """Returns when one of the endpoint's addresses takes a connection, for a webhook one with a certificate to its name.

    Raises EndpointNotReached, and EndpointNotAllowed.
    """
    addresses = await guard.addresses_of(endpoint)
    if not addresses:
        raise EndpointNotReached("its name has no address")
    context = tls if endpoint.is_webhook else None
    why = ""
    for address in addresses:
        try:
            async with asyncio.timeout(_REACH_SECONDS):
                _, writer = await asyncio.open_connection(
                    str(address), endpoint.port, ssl=context, server_hostname=endpoint.host if context else None
                )
        except ssl.SSLError:
            why = "it shows no certificate that is trusted and names it"
        except TimeoutError:
            why = f"it does not answer within {_REACH_SECONDS:g} s"
        except OSError:
            why = "it takes no connection"
        else:
            writer.transport.abort()
            return
    raise EndpointNotReached(why)
