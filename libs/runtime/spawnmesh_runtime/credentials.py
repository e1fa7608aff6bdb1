"""Credentials of gRPC servers from mounted TLS files. Renewed files apply to new connections."""

import threading
from typing import Any

import grpc
from spawnmesh_calls.tls_files import TlsFiles, TlsMaterial


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return server credentials that follow the files.

    If the files have an authority at the start, clients must present a certificate of it. A server
    that starts without an authority never requests client certificates, even if the files change.
    """
    current = files.current()
    first, lock = current, threading.Lock()

    def renewed() -> Any:  # A configuration or None; the stubs of grpc do not allow None.
        """Return the new configuration, or None to keep the current one.

        The transport calls this before each handshake, in a thread of its own.
        """
        nonlocal current
        with lock:
            newest = files.current()
            if newest is current:
                return None
            current = newest
            return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(first), renewed, require_client_authentication=first.authority is not None
    )


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.authority)
