"""Connections of a client to the services of a mesh.

They use TLS or plaintext, as the settings say. Each call leaves a client span if the program has
the API of OpenTelemetry; the package itself does not need it.
"""

import logging
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
from spawnmesh_calls.channel_options import peer_options
from spawnmesh_calls.connection import Connection, ReadError, TraceCall, open_connection, untraced
from spawnmesh_calls.service_header import SERVICE_HEADER
from spawnmesh_calls.tls_files import ServerTls, TlsFiles, TlsMaterial, TlsUnusable
from spawnmesh_calls.wire_errors import client_error_from, shortened
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.settings import ConnectionSettings

_CAUSE = re.compile(r"^.*last error: [A-Z_]+: ")
_CAUSE_BYTES = 300
_log = logging.getLogger("spawnmesh_client")
_log.addHandler(logging.NullHandler())  # Silent, unless the program sets up logging.


class ClientTlsFiles(TlsFiles):
    """TLS files whose unusable contents are logged."""

    def check(self, material: TlsMaterial) -> None:
        """Raise TlsUnusable unless the key is the certificate's and the authority is in PEM."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        certificate, key, *_ = self.paths
        try:
            context.load_cert_chain(certificate, key, password="")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise TlsUnusable("tls_key_file is not the key of the certificate in tls_cert_file") from None
            raise TlsUnusable(
                "tls_cert_file and tls_key_file are not a certificate and its key in PEM without a password"
            ) from None
        except OSError:
            raise TlsUnusable("a TLS file cannot be read: check tls_cert_file and tls_key_file") from None
        if material.authority is not None:
            try:
                context.load_verify_locations(cadata=material.authority.decode("ascii"))
            except (ssl.SSLError, ValueError):
                raise TlsUnusable("tls_ca_file is not a certificate in PEM") from None

    def report_unusable(self, error: TlsUnusable) -> None:
        """Log the reason."""
        _log.warning("the TLS files are unusable, the former ones stay in use: %s", error)


@asynccontextmanager
async def open_service(
    name: str, target: str, settings: ConnectionSettings, *, scheme: str = "", certificate_host: str = ""
) -> AsyncIterator[Connection]:
    """Open a channel to a service and close it at the end of the block.

    `target` is as for `open_connection`. The scheme of a URL decides about TLS: `http` or `https`;
    without one, the settings decide. `certificate_host` is the name in the service's certificate,
    if the target has another one. Raises TlsUnusable.
    """
    options = peer_options(settings.max_message_bytes, certificate_host)
    async with open_connection(
        name,
        target,
        _tls(settings, scheme),
        options,
        trace_call=_traces(),
        headers=((SERVICE_HEADER, name),),
        read_error=_errors_at(target),
        report_silence=_log_silence,
    ) as connection:
        yield connection


def _errors_at(target: str) -> ReadError:
    """Return a reader of errors that says at which address nothing answers, and why."""

    def read(name: str, error: grpc.aio.AioRpcError) -> MeshError:
        refusal = client_error_from(name, error)
        if refusal.reason is not Reason.DEPENDENCY_UNAVAILABLE or refusal.domain:
            return refusal
        cause = shortened(_CAUSE.sub("", error.details() or ""), _CAUSE_BYTES)
        return MeshError(
            refusal.reason,
            f"{name} does not answer at {target}{cause and f' ({cause})'}; call again later",
            retry_after_seconds=refusal.retry_after_seconds,
            facts=refusal.facts,
        )

    return read


def _tls(settings: ConnectionSettings, scheme: str) -> TlsFiles | ServerTls | None:
    if scheme == "http":
        return None
    if settings.tls_cert_file is not None and settings.tls_key_file is not None:
        return ClientTlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    if scheme == "https" or settings.tls_ca_file is not None:
        return ServerTls(settings.tls_ca_file)
    return None


def _traces() -> TraceCall:
    """Return spans of the program's tracer provider; nothing without OpenTelemetry."""
    try:
        from opentelemetry import trace
        from spawnmesh_calls.spans import client_spans
    except ImportError:
        return untraced
    return client_spans(trace.get_tracer("spawnmesh"))


def _log_silence(name: str) -> None:
    _log.warning("%s keeps its connections open and does not answer", name)
