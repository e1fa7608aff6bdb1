"""Settings of a gateway: its address, the targets of the services, and its limits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

SERVICES = ("session", "attachment-blob", "transcript", "model-router", "hook")
_MIB = 1024 * 1024
_ADDRESS = re.compile(r"([^\s:/,]+|\[[0-9a-f:.]+\]):(\d{1,5})")
_ORIGIN = re.compile(r"https?://[^\s/*?#]+")


class SettingsUnusable(ValueError):
    """A setting of the gateway is malformed, or contradicts another one."""


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "HostPort":
        """Parse `host:port`. Raises SettingsUnusable."""
        match = _ADDRESS.fullmatch(text)
        if match is None or not 0 < int(match[2]) < 65_536:
            raise SettingsUnusable(f"{text!r} is not host:port")
        return cls(match[1].strip("[]"), int(match[2]))


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a certificate, its key and the authority of the peers."""

    certificate: PurePosixPath
    key: PurePosixPath
    authority: PurePosixPath


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`targets` has each service's target by kebab id: `host:port`, `dns:///host:port`, or
    `ipv4:host:port,host:port`.

    `upstream_tls` is shown to the services, and its authority is the one of their certificates.
    `downstream_tls` is shown to clients; without it the gateway speaks plaintext. Browsers of
    `allowed_origins` alone may call. `admin_socket` is the Unix socket of Envoy's administration;
    without it there is none. Raises SettingsUnusable.
    """

    listen: HostPort
    targets: Mapping[str, str]
    upstream_tls: Tls | None = None
    downstream_tls: Tls | None = None
    allowed_origins: tuple[str, ...] = ()
    connect_protocol: bool = False
    """Translate the Connect protocol. Envoy calls its filter work in progress, without a promise of
    security.
    """
    folder: PurePosixPath = field(default=PurePosixPath("."))
    """The folder in which Envoy finds the files."""
    admin_socket: PurePosixPath | None = None
    metrics_listen: HostPort | None = None
    max_message_bytes: int = 16 * _MIB
    max_connections: int = 2000
    max_heap_bytes: int = 512 * _MIB
    upstream_hosts: Mapping[str, str] = field(default_factory=dict)
    """The name in each service's certificate, if the target has another host."""

    def __post_init__(self) -> None:
        if missing := [name for name in SERVICES if not self.targets.get(name)]:
            raise SettingsUnusable(f"the target of {', '.join(missing)} is missing")
        if unknown := sorted(set(self.targets) - set(SERVICES)):
            raise SettingsUnusable(f"no service is called {', '.join(unknown)}")
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise SettingsUnusable(f"{origin!r} is no origin, such as https://app.example.com")
        if self.metrics_listen is not None and self.admin_socket is None:
            raise SettingsUnusable("metrics need the socket of the administration")
        for target in self.targets.values():
            addresses_of(target)


def addresses_of(target: str) -> list[HostPort]:
    """Return the addresses of a target. Raises SettingsUnusable."""
    text = target.removeprefix("dns:///").removeprefix("ipv4:")
    return [HostPort.parse(part) for part in text.split(",")]
