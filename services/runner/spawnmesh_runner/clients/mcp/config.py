"""The operator's MCP servers: their addresses, the tenants that may name them, and their limits.

The file is read once, when the process starts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from spawnmesh_runner.clients.mcp.credentials import is_reference
from spawnmesh_runner.clients.sandbox.command_line import MIB, Confinement, ProcessLimits
from spawnmesh_runner.domain.failure import McpServerNotOffered

ALL_TENANTS = "*"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Limit of one message of a server.

A server that sends more is disconnected: messages are held in memory.
"""
MAX_MESSAGE_VALUES = 200_000
"""Limit of the JSON values in a message. Each takes a hundred bytes in memory, two as text."""

_SERVER_NAME = re.compile(r"(?=.{1,32}\Z)[a-z0-9]+([_-][a-z0-9]+)*")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SECRET_NAME = re.compile(r"auth|cookie|token|key|secret|passw|credential", re.IGNORECASE)
_MAX_SECONDS = 3600
_SANDBOX_FIELDS = frozenset(
    [
        "paths",
        "network",
        "max_memory_bytes",
        "max_processes",
        "max_open_files",
        "max_file_bytes",
        "max_cpu_seconds",
    ]
)
# A program gets its own ones of these.
_OWN_PATHS = frozenset(map(Path, ("/", "/tmp")))  # noqa: S108 - compared only
_KERNEL_PATHS = ("/dev", "/proc", "/sys")

Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=1024)]
Paths = Annotated[tuple[Annotated[str, Field(pattern=r"^/")], ...], Field(max_length=64)]
Seconds = Annotated[float, Field(gt=0, le=_MAX_SECONDS)]


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class McpServer(_StrictModel):
    """A server: a command that runs beside each run, or an address.

    A value of `env` and `headers` is a text or a reference to one (`env:NAME`, `file:/path`). If
    the name looks like a secret, only a reference is accepted.
    """

    command: str | None = Field(default=None, min_length=1)
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    """The process's environment, beside `PATH`, `HOME`, `TMPDIR`, `LANG` and `PYTHONSAFEPATH`.

    It may override these.
    """
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    bearer_token: str | None = None
    """Reference to the token that is sent as `Authorization: Bearer …`."""
    tenants: Names
    """The tenants that may name it; `["*"]` is every tenant."""
    tools: Names | None = None
    """The tools that are offered. Without a list all are."""
    trust_annotations: bool = False
    """Trust `readOnlyHint` and `idempotentHint`: repeat a call of such a tool if its outcome is
    unknown.
    """
    connect_timeout_seconds: Seconds = 30.0
    call_timeout_seconds: Seconds = 60.0
    max_result_bytes: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 64 * 1024
    paths: Paths = ()
    """Absolute paths that a command may read beside the system's programs."""
    network: bool = False
    """Let a command use the runner's network. Otherwise it has a loopback of its own alone."""
    max_memory_bytes: Annotated[int, Field(ge=16 * MIB, le=1024 * 1024 * MIB)] = 512 * MIB
    max_processes: Annotated[int, Field(ge=4, le=100_000)] = 128
    max_open_files: Annotated[int, Field(ge=16, le=1_000_000)] = 1024
    max_file_bytes: Annotated[int, Field(ge=0, le=1024 * 1024 * MIB)] = 1024 * MIB
    max_cpu_seconds: Annotated[int, Field(ge=1, le=1_000_000)] = 3600

    @field_validator("command")
    @classmethod
    def _command_is_not_the_agents(cls, value: str | None) -> str | None:
        if value is not None and "/" in value and not value.startswith("/"):
            raise ValueError("must be a name or an absolute path: it is run where the agent writes")
        return value

    @field_validator("tenants")
    @classmethod
    def _every_tenant_is_alone(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if ALL_TENANTS in value and len(value) > 1:
            raise ValueError('"*" is every tenant: it stands alone')
        return value

    @field_validator("paths")
    @classmethod
    def _paths_are_files_of_the_operator(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            path = Path(text)
            if ".." in path.parts or path in _OWN_PATHS or any(map(path.is_relative_to, _KERNEL_PATHS)):
                raise ValueError("must be plain paths, and neither / nor /tmp, nor in /dev, /proc or /sys")
        return value

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "http://none")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise ValueError("must be an http:// or https:// address without user and password")
        return value

    @field_validator("bearer_token")
    @classmethod
    def _token_is_a_reference(cls, value: str | None) -> str | None:
        if value is not None and not is_reference(value):
            raise ValueError("must be env:NAME or file:/absolute/path")
        return value

    @model_validator(mode="after")
    def _has_one_transport(self) -> Self:
        if (self.command is None) is (self.url is None):
            raise ValueError("set either command or url")
        if self.url is not None and (self.args or self.env):
            raise ValueError("args and env go with command")
        if self.url is not None and self.model_fields_set & _SANDBOX_FIELDS:
            raise ValueError(", ".join(sorted(_SANDBOX_FIELDS)) + " go with command")
        if self.command is not None and (self.headers or self.bearer_token):
            raise ValueError("headers and bearer_token go with url")
        if self.bearer_token and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("has an Authorization header and a bearer_token")
        return self

    @model_validator(mode="after")
    def _texts_are_valid(self) -> Self:
        for what, shape, values in (
            ("env", _VARIABLE_NAME, self.env),
            ("headers", _HEADER_NAME, self.headers),
        ):
            for name, value in values.items():
                if not shape.fullmatch(name):
                    raise ValueError(f"{what} has a name that cannot be one")
                if value.startswith(("env:", "file:")) and not is_reference(value):
                    raise ValueError(
                        f"{what}.{name} must be env:NAME or file:/absolute/path, if it is a reference"
                    )
                if _SECRET_NAME.search(name) and not is_reference(value):
                    raise ValueError(
                        f"{what}.{name} looks like a secret: it must be env:NAME or file:/absolute/path"
                    )
        if any(
            "\0" in text
            for text in (self.command or "", *self.args, *self.env.values(), *self.headers.values())
        ):
            raise ValueError("has a NUL character")
        return self


class McpConfig(_StrictModel):
    """All servers, by the names that agents' profiles use."""

    servers: dict[str, McpServer] = Field(default_factory=dict)

    @field_validator("servers")
    @classmethod
    def _names_are_plain(cls, value: dict[str, McpServer]) -> dict[str, McpServer]:
        if not all(map(_SERVER_NAME.fullmatch, value)):
            raise ValueError(
                "a server's name has at most 32 lower-case letters and digits, with single '_' or '-' between"
            )
        return value


def load_mcp_config(file: Path | None, *, keep_from: Iterable[Path] = ()) -> McpConfig:
    """Return the configuration; an empty one without a file.

    A wrong file ends the process with a message of one line. The message repeats no values. A file
    is wrong, too, if a server may read what must be kept from it.
    """
    if file is None:
        return McpConfig()
    try:
        config = McpConfig.model_validate_json(file.read_bytes())
    except OSError:
        raise SystemExit("runner: mcp_config_file cannot be read") from None
    except ValidationError as error:
        problems = [_problem(".".join(map(str, item["loc"])), item["msg"]) for item in error.errors()]
    else:
        problems = list(_exposed(config, keep_from))
        if not problems:
            return config
    raise SystemExit("runner: mcp_config_file is wrong: " + "; ".join(problems))


def commands_among(servers: Mapping[str, McpServer]) -> list[str]:
    """Return the names of the servers that are commands."""
    return [name for name, server in servers.items() if server.command is not None]


def confinement_of(server: McpServer, workspace: Path, cgroup: Path | None = None) -> Confinement:
    """Return what the server may use if it is a command."""
    return Confinement(
        workspace=workspace,
        paths=server.paths,
        network=server.network,
        limits=ProcessLimits(
            memory_bytes=server.max_memory_bytes,
            processes=server.max_processes,
            open_files=server.max_open_files,
            file_bytes=server.max_file_bytes,
            cpu_seconds=server.max_cpu_seconds,
        ),
        cgroup=cgroup,
    )


def _exposed(config: McpConfig, keep_from: Iterable[Path]) -> Iterator[str]:
    kept = [path.resolve() for path in keep_from]
    for name, server in config.servers.items():
        for path in (Path(text).resolve() for text in server.paths):
            if any(path.is_relative_to(one) or one.is_relative_to(path) for one in kept):
                yield f"servers.{name}: paths has the runner's workspaces, keys or secrets"
                break


def offered_servers(config: McpConfig, names: Iterable[str], tenant_id: str) -> Mapping[str, McpServer]:
    """Return the servers that a profile of the tenant names.

    Raises McpServerNotOffered if the tenant may not name one of them.
    """
    found = {name: config.servers.get(name) for name in names}
    offered = {
        name: server
        for name, server in found.items()
        if server is not None and (server.tenants == (ALL_TENANTS,) or tenant_id in server.tenants)
    }
    if missing := [name for name in found if name not in offered]:
        raise McpServerNotOffered(missing)
    return offered


def _problem(path: str, message: str) -> str:
    text = message.removeprefix("Value error, ")
    return f"{path}: {text}" if path else text
