"""Check the services' certificates on the connection: a mounted file may not be the one in use."""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from spawnmesh_core.clock import utc_now
from spawnmesh_runtime.settings import ProcessSettings, address_parts

from spawnmesh_command.doctor.finding import Finding

_CONNECT_SECONDS = 3.0
_EXPIRES_SOON = timedelta(days=7)
_RENEW = (
    "see why it was not renewed; a service loads renewed files by itself,"
    " and logs tls_files_unusable if it cannot"
)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The certificate of one address: its expiry, or the reason why it is not trusted."""

    service: str
    expires: datetime | None
    fault: str = ""


async def check_certificates(targets: Mapping[str, str], settings: ProcessSettings) -> Finding:
    """Connect to every address behind each target as a client, and check the certificates."""
    if settings.tls_cert_file is None:
        return Finding("certificate", None, "not looked at: connections are made without TLS")
    try:
        context = _context(settings)
    except OSError:  # OpenSSL reports unusable files as OSError, too.
        return Finding(
            "certificate",
            False,
            "the command's own cannot be used",
            "mount certificate, key and authority in PEM",
        )
    looks = await asyncio.gather(*(_service(context, name, target) for name, target in targets.items()))
    shown = [one for look in looks for one in look]
    faults = sorted({f"{one.service}'s is not trusted: {one.fault}" for one in shown if one.fault})
    if faults:
        return Finding("certificate", False, "; ".join(faults), _RENEW)
    holding = [(one.expires, one.service) for one in shown if one.expires is not None]
    if not holding:
        return Finding("certificate", None, "not looked at: no service takes a connection")
    first, service = min(holding)
    days = f"good for {(first - utc_now()).days} days"
    if first - utc_now() < _EXPIRES_SOON:
        return Finding("certificate", False, f"{service}'s is {days} only", _RENEW)
    seen = len({service for _, service in holding})
    return Finding("certificate", True, f"{seen} of {len(targets)} services show one that is {days} at least")


def _context(settings: ProcessSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.tls_ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Newer Pythons set this flag; gRPC does not.
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(str(settings.tls_cert_file), settings.tls_key_file)
    return context


async def _service(context: ssl.SSLContext, name: str, target: str) -> list[_Shown]:
    """Return the certificate of each replica that the name resolves to, except of those that
    refuse connections.
    """
    host, port = address_parts(target.removeprefix("dns:").rpartition("/")[2])
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = {str(address[0]) for *_, address in found}
    looks = await asyncio.gather(*(_shown(context, name, host, address, port) for address in addresses))
    return [one for one in looks if one is not None]


async def _shown(context: ssl.SSLContext, name: str, host: str, address: str, port: int) -> _Shown | None:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(address, port, ssl=context, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        return _Shown(name, None, error.verify_message)
    except (OSError, TimeoutError):
        return None
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return _Shown(name, x509.load_der_x509_certificate(certificate).not_valid_after_utc)
