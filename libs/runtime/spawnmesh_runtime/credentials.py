"""What gRPC shows and trusts, from mounted TLS files; renewed files count from the next connection on."""

import threading
from typing import Any

import grpc

from spawnmesh_runtime.tls_files import TlsFiles, TlsMaterial


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """With an authority, callers must show a certificate of it.

    A server that began without one never asks for certificates: which of both it is does not change with the files.
    """
    shown = files.current()
    first, turn = shown, threading.Lock()

    def renewed() -> Any:  # A configuration, or None; grpc's stubs know nothing of the latter.
        """Asked by the transport, in a thread of its own, before each handshake. None keeps what is shown."""
        nonlocal shown
        with turn:
            newest = files.current()
            if newest is shown:
                return None
            shown = newest
            return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(first), renewed, require_client_authentication=first.authority is not None
    )


def peer_credentials(material: TlsMaterial) -> grpc.ChannelCredentials:
    """Without an authority the system's are trusted."""
    return grpc.ssl_channel_credentials(
        root_certificates=material.authority, private_key=material.key, certificate_chain=material.chain
    )


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.authority)
