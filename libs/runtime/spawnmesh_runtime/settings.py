"""The settings that every process reads from its environment. Each service adds its own."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from spawnmesh_runtime.call_limits import DefaultCallLimits
from spawnmesh_runtime.jwks import check_https
from spawnmesh_runtime.oidc import OidcIssuer

MIB = 1024 * 1024
_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):(\d{1,5})")


class ProcessSettings(BaseSettings):
    """Settings that all processes share.

    A subclass sets `model_config = SettingsConfigDict(env_prefix="HOOK_")`. Lists are JSON in the
    environment. `jwks_file` and `jwks_url` exclude each other; a server needs one of them.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    listen: str = "127.0.0.1:0"
    """`host:port` to serve on; port 0 selects a free port."""
    health_listen: str | None = None
    """`host:port` for health checks without TLS.

    Its service `live` is SERVING while the event loop runs.
    """
    jwks_file: Path | None = None
    """Local file with the public keys that verify tokens. It is read again when it changes."""
    jwks_url: str | None = None
    """`https://` address of the public keys, if there is no `jwks_file`."""
    token_audience: str = "spawnmesh"  # noqa: S105 - a name, not a secret
    """The audience that tokens of this mesh must name."""
    signing_key_file: Path | None = None
    """PKCS8 private key for the tokens of this process. All replicas of a service have the same.

    The file states the key id; default `<service>-1`. The key of page tokens is derived from it, so
    a service does not start without it.
    """
    client_issuers: list[str] = ["client"]
    """Issuers that may issue tokens for clients and operators."""
    max_token_lifetime_seconds: int = Field(default=30 * 86_400, ge=7200, le=366 * 86_400)
    """Tokens whose `exp` is later than this after their `iat` are refused.

    A token is revoked for at most this time.
    """
    oidc_issuers: list[OidcIssuer] = []
    """OpenID Connect issuers whose tokens are accepted, besides those of the mesh."""
    trace_parent_issuers: list[str] = []
    """Client issuers whose callers may decide the trace and the sampling of their calls.

    The calls of others start a trace that is linked to theirs.
    """
    trace_sample_ratio: float = Field(default=1.0, ge=0.0, le=1.0)
    """The share of the traces that start here which are recorded, from 0 to 1.

    A call that continues a trace is recorded if that trace is.
    """
    otlp_endpoint: str | None = None
    """`http://host:port` of an OTLP/gRPC collector; without it the process sends no
    traces, metrics or audit events.
    """
    span_journal_dir: Path | None = None
    """Directory in which the process notes spans that are not yet sent.

    After a crash, the next process that uses the directory sends them. Processes may share it, and
    it must outlive each of them. Without it, spans that are open at a crash are missing.
    """
    metrics_listen: str | None = None
    """`host:port` that Prometheus scrapes; without it nothing listens.

    Port 0 selects a free port.
    """
    environment: str = "local"
    """The name of the deployment, for spans, metrics and log records."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level of log records that are written."""
    drain_grace_seconds: float = Field(default=10.0, ge=0, le=3600)
    """Time that running calls have to end after a signal to stop."""
    max_message_bytes: int = Field(default=16 * MIB, ge=1024, le=1024 * MIB)
    """The largest message that is sent or received. It is the same for all services of a mesh."""
    request_memory_bytes: int = Field(default=128 * MIB, ge=MIB, le=1024 * 1024 * MIB)
    """Bytes of requests above 64 KiB that the process works on at a time. A tenant has half of it.

    Further ones wait, and are refused if they are too many. Work on a request takes several times
    its bytes.
    """
    message_timeout_seconds: float = Field(default=60.0, gt=0, le=3600)
    """Time in which a caller must send its request, and each further message of a stream of them.

    The call is refused then, so that a silent or slow sender holds nothing for long.
    """
    max_call_seconds: float = Field(default=3600.0, gt=0, le=86_400)
    """Time after which a call is ended, whatever its deadline, unless it is a stream of new events.

    These end with their connection, which lives for its age and a little longer than this.
    """
    max_connection_age_seconds: float = Field(default=60.0, gt=0, le=86_400)
    """Time after which a connection takes no further calls.

    Its client connects again, and finds new replicas.
    """
    max_connection_streams: int = Field(default=1000, ge=1, le=1_000_000)
    """Calls on one connection at a time; the client keeps further ones waiting."""
    revocations_wait_seconds: float = Field(default=30.0, ge=0, le=90)
    """The longest time that a process that starts waits for the revocations before it serves.

    Then it serves without them: an outage of the session service must not stop all services.
    """
    max_revoked_tokens: int = Field(default=100_000, ge=10, le=10_000_000)
    """Revoked tokens that the process remembers, and as many ended runs."""
    call_limits: DefaultCallLimits = DefaultCallLimits()
    """The limits of the calls of a tenant that has none of its own.

    As JSON it is an object with the classes of RPCs, and within them the limits, that differ from
    the defaults.
    """
    tls_cert_file: Path | None = None
    """Certificate chain of this process. Without it, it serves and calls without TLS."""
    tls_key_file: Path | None = None
    """Private key of the certificate."""
    tls_ca_file: Path | None = None
    """Authority of the peers' certificates. With it, both sides of a connection must show one."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read no `.env` file: without one, it takes as long as the environment."""
        return init_settings, env_settings, file_secret_settings

    @field_validator("listen", "health_listen", "metrics_listen")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        match = None if value is None else _LISTEN.fullmatch(value)
        if value is not None and (match is None or int(match.group(2)) > 65535):
            raise ValueError("must be host:port")
        return value

    @field_validator("jwks_url")
    @classmethod
    def _is_private_on_its_way(cls, value: str | None) -> str | None:
        return value if value is None else check_https(value)

    @field_validator("otlp_endpoint")
    @classmethod
    def _url_is_http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return value

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.jwks_file is not None and self.jwks_url is not None:
            raise ValueError("jwks_file and jwks_url exclude each other")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file come together")
        if self.tls_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("tls_ca_file needs tls_cert_file and tls_key_file")
        return self

    @property
    def listen_host(self) -> str:
        return address_parts(self.listen)[0]

    @property
    def listen_port(self) -> int:
        return address_parts(self.listen)[1]


class CpuWorkerSettings(ProcessSettings):
    """Settings of a process that has worker processes for large content."""

    cpu_worker_count: int = Field(default=2, ge=1, le=64)
    """Worker processes, of which a tenant has at most half at a time.

    Each takes some ten times the size of the content that it works on.
    """
    cpu_work_seconds: float = Field(default=60.0, gt=0, le=3600)
    """The longest time for one piece of work.

    After it, the worker process is ended and replaced, and the call is refused with
    PROCESSING_TIME_EXCEEDED.
    """


def address_parts(address: str) -> tuple[str, int]:
    """Return host and port of a well-formed `host:port`; an IPv6 host loses its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


S = TypeVar("S", bound=ProcessSettings)


def load_settings(cls: type[S]) -> S:
    """Read the settings from the environment.

    A variable that is not set is read from the file of its name in the directory
    `<prefix>SECRETS_DIR`: a mounted password is not in the environment. Raises SystemExit with one
    line that names each invalid variable without its value.
    """
    prefix = cls.model_config.get("env_prefix", "")
    folder = os.environ.get(f"{prefix}SECRETS_DIR")
    if folder is not None and not Path(folder).is_dir():
        raise SystemExit(f"invalid settings: {prefix}SECRETS_DIR: is not a directory")
    read: Callable[..., S] = cls
    try:
        return read(_secrets_dir=folder)
    except ValidationError as error:
        problems = [_problem(prefix, ".".join(map(str, item["loc"])), item["msg"]) for item in error.errors()]
    except SettingsError:
        problems = ["a list or a number cannot be read"]
    raise SystemExit("invalid settings: " + "; ".join(problems))


def _problem(prefix: str, field: str, message: str) -> str:
    text = message.removeprefix("Value error, ")
    return f"{prefix}{field.upper()}: {text}" if field else f"{prefix}*: {text}"
