"""TLS from mounted files; plaintext where none are given."""

from pathlib import Path

import grpc

from spawnmesh_runtime.settings import ProcessSettings


def server_credentials(settings: ProcessSettings) -> grpc.ServerCredentials | None:
    """None for plaintext. With an authority, callers must show a certificate of it."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    authority = _read(settings.tls_ca_file)
    return grpc.ssl_server_credentials(
        [(_must_read(settings.tls_key_file), _must_read(settings.tls_cert_file))],
        root_certificates=authority,
        require_client_auth=authority is not None,
    )


def peer_credentials(settings: ProcessSettings) -> grpc.ChannelCredentials | None:
    """None for plaintext. Without an authority the system's are trusted."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=_read(settings.tls_ca_file),
        private_key=_must_read(settings.tls_key_file),
        certificate_chain=_must_read(settings.tls_cert_file),
    )


def _read(path: Path | None) -> bytes | None:
    return None if path is None else _must_read(path)


def _must_read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        raise SystemExit("a TLS file cannot be read: check tls_cert_file, tls_key_file and tls_ca_file") from None
