"""Probes whether a plugin's endpoint accepts connections."""

import asyncio
import ssl
from dataclasses import dataclass

from spawnmesh_runtime.settings import ProcessSettings

from spawnmesh_hook.domain.endpoints import Address, Endpoint
from spawnmesh_hook.domain.errors import EndpointNotReached

_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class ConnectivityProbe:
    """Connects to endpoints with the TLS that calls of plugins use."""

    settings: ProcessSettings
    webhook_tls: ssl.SSLContext

    async def check(self, endpoint: Endpoint, addresses: tuple[Address, ...]) -> None:
        """Return once one of the addresses accepts a connection. Raises EndpointNotReached.

        With TLS, the certificate has to be trusted and to name the endpoint's host.
        """
        if not addresses:
            raise EndpointNotReached("its name has no address")
        context = None
        if not endpoint.is_plain:
            context = self.webhook_tls if endpoint.is_webhook else _mesh_tls(self.settings)
        why = ""
        for address in addresses:
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    _, writer = await asyncio.open_connection(
                        str(address),
                        endpoint.port,
                        ssl=context,
                        server_hostname=endpoint.host if context else None,
                    )
            except ssl.SSLError:
                why = "it shows no certificate that is trusted and names it"
            except TimeoutError:
                why = f"it does not answer within {_TIMEOUT_SECONDS:g} s"
            except OSError:
                why = "it refuses connections"
            else:
                writer.transport.abort()
                return
        raise EndpointNotReached(why)


def _mesh_tls(settings: ProcessSettings) -> ssl.SSLContext | None:
    """Return the TLS for plugins behind gRPC, from the files as they are now.

    Return None if the mesh has no certificates.
    """
    if settings.tls_cert_file is None:
        return None
    context = ssl.create_default_context(cafile=settings.tls_ca_file)
    # Newer Pythons set this flag by default. gRPC, which makes the calls, does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    return context
