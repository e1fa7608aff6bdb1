"""Whether anybody answers at a plugin's endpoint."""

import asyncio
import ssl

from spawnmesh_runtime.settings import ProcessSettings

from spawnmesh_hook.domain.endpoints import Address, Endpoint
from spawnmesh_hook.errors import EndpointNotReached

_REACH_SECONDS = 3.0


def mesh_tls(settings: ProcessSettings) -> ssl.SSLContext | None:
    """What plugins behind gRPC are connected to with, by the files as they are now; None where the mesh has no certificates."""
    if settings.tls_cert_file is None:
        return None
    context = ssl.create_default_context(cafile=settings.tls_ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Newer Pythons set it; what calls are made with does not.
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    return context


async def check_reachable(endpoint: Endpoint, addresses: tuple[Address, ...], context: ssl.SSLContext | None) -> None:
    """Returns when one of the addresses takes a connection, with a certificate to the endpoint's name where there is a context.

    Raises EndpointNotReached.
    """
    if not addresses:
        raise EndpointNotReached("its name has no address")
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
