"""An HTTPS server on loopback for webhooks."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from spawnmesh_core.clock import utc_now
from standardwebhooks import Webhook

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


def signed_headers(secret: str, message_id: str, body: bytes, *, seconds_ago: int = 0) -> dict[str, str]:
    """Return the headers of a request that the mesh signed at that time."""
    at = utc_now() - timedelta(seconds=seconds_ago)
    return {
        "Webhook-Id": message_id,
        "Webhook-Timestamp": str(int(at.timestamp())),
        "Webhook-Signature": Webhook(secret).sign(message_id, at, body.decode()),
    }


def write_certificate(file: Path, *names: str) -> Path:
    """Write a self-signed certificate for 127.0.0.1 and the names, and its key, into the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(utc_now() - timedelta(hours=1))
        .not_valid_after(utc_now() + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ip_address("127.0.0.1")), *(x509.DNSName(name) for name in names)]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    file.write_bytes(
        made.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    )
    return file


def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


@asynccontextmanager
async def https_site(
    handle: Handle, certificate: Path | None, *, host: str = "127.0.0.1", address: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """Serve the handler at every path of the address, without a certificate over HTTP.

    Give a URL with the host.
    """
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    # A handler that waits for ever ends with its request.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        tls = None if certificate is None else server_tls(certificate)
        one = web.TCPSite(runner, address, 0, ssl_context=tls)
        await one.start()
        sockets = one._server.sockets  # type: ignore[union-attr]
        yield f"{'https' if tls else 'http'}://{host}:{sockets[0].getsockname()[1]}/hooks"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_https_site(certificate: Path, *answers: bytes) -> AsyncIterator[str]:
    """Serve a webhook that answers with these bytes in turn, whatever HTTP says. Give its URL."""
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(left.pop(0))
            await writer.drain()
            await reader.read()  # Until the caller closes the connection.
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_tls(certificate))
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks"
    assert left == []
