"""Settings of a client: the TLS files and the largest message."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

_MIB = 1024 * 1024
_PREFIX = "SPAWNMESH_"
_LEAST_MESSAGE_BYTES, _MOST_MESSAGE_BYTES = 1024, 1024 * _MIB


class ConnectionSettings(Protocol):
    """The settings that connections need. Those of any process of the mesh have them."""

    @property
    def tls_cert_file(self) -> Path | None: ...
    @property
    def tls_key_file(self) -> Path | None: ...
    @property
    def tls_ca_file(self) -> Path | None: ...
    @property
    def max_message_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Connections use TLS if there is a certificate with its key, and plaintext otherwise.

    `tls_ca_file` is the authority of the services' certificates; without it, the authorities of the
    system are trusted. Raises ValueError for settings that exclude each other.
    """

    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_ca_file: Path | None = None
    max_message_bytes: int = 16 * _MIB

    def __post_init__(self) -> None:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file come together")
        if self.tls_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("tls_ca_file needs tls_cert_file and tls_key_file")
        if not _LEAST_MESSAGE_BYTES <= self.max_message_bytes <= _MOST_MESSAGE_BYTES:
            raise ValueError(f"max_message_bytes must be {_LEAST_MESSAGE_BYTES} to {_MOST_MESSAGE_BYTES}")

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> Self:
        """Read `SPAWNMESH_TLS_CERT_FILE`, `…_TLS_KEY_FILE`, `…_TLS_CA_FILE` and
        `…_MAX_MESSAGE_BYTES`. Raises ValueError for malformed ones.
        """

        def file(name: str) -> Path | None:
            value = variables.get(f"{_PREFIX}{name}")
            return Path(value) if value else None

        return cls(
            file("TLS_CERT_FILE"),
            file("TLS_KEY_FILE"),
            file("TLS_CA_FILE"),
            int(variables.get(f"{_PREFIX}MAX_MESSAGE_BYTES") or 16 * _MIB),
        )
