"""Settings of a client: the TLS files, the largest message, and where the mesh is."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

_MIB = 1024 * 1024
_PREFIX = "SPAWNMESH_"
SERVICES = ("session", "transcript", "attachment-blob", "model-router", "hook")
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
    """Connections to targets use TLS if there are TLS files, else plaintext; a URL says it itself.

    `tls_ca_file` is the authority of the services' certificates; without it, the authorities of the
    system are trusted. The certificate with its key is the one that the client shows, for a mesh
    that asks for one. Raises ValueError for settings that exclude each other.
    """

    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_ca_file: Path | None = None
    max_message_bytes: int = 16 * _MIB

    def __post_init__(self) -> None:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file come together")
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


@dataclass(frozen=True, slots=True)
class MeshEnvironment:
    """The mesh that the environment names: one URL, or a target for each service by kebab id."""

    url: str = ""
    targets: Mapping[str, str] = field(default_factory=dict)
    token: str = field(default="", repr=False)
    data: Path = Path(".data")
    """The directory in which a mesh on this machine leaves its addresses and a token."""

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> Self:
        """Read `SPAWNMESH_URL`, `…_SESSION_TARGET` and those of the other services, `…_TOKEN` and
        `…_DATA`.
        """
        named = {name: variables.get(f"{_PREFIX}{_upper(name)}_TARGET", "") for name in SERVICES}
        return cls(
            variables.get(f"{_PREFIX}URL", "").strip(),
            {name: target for name, target in named.items() if target},
            variables.get(f"{_PREFIX}TOKEN", "").strip(),
            Path(variables.get(f"{_PREFIX}DATA") or ".data"),
        )


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()
