"""The endpoints of the mesh that the command uses, and its tokens."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError
from spawnmesh_client.discovery import parse_url
from spawnmesh_client.token_peer import Token
from spawnmesh_core.clock import Clock, utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.tokens import TokenMinter

from spawnmesh_command.settings import CommandSettings

MESH_FILE = "mesh.json"
SERVICES = ("session", "transcript", "attachment-blob", "model-router", "hook")
_TOKEN_SECONDS = 300.0  # The lifetime of a token for one call.
_TOKEN = re.compile(r"[!-~]+")
_SUBJECT = "spawnmesh-command"


class _MeshFile(BaseModel):
    targets: dict[str, str]
    keys: Path | None = None
    traces: Path | None = None
    console: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Targets by kebab id, always with `session`.

    Those of services in `at_url` are the host of `url`. `traces` is the span file of a mesh on this
    machine, and `console` the address of its console, if it has one. `audience` is the audience of
    tokens that are signed with the key.
    """

    targets: Mapping[str, str]
    key_file: Path | None
    audience: str
    traces: Path | None
    url: str = ""
    at_url: frozenset[str] = frozenset()
    console: str = ""

    @property
    def addresses(self) -> dict[str, str]:
        """Return the arguments of `connect_wire` that name the mesh."""
        own = {
            name.replace("-", "_"): target for name, target in self.targets.items() if name not in self.at_url
        }
        return {**own, "url": self.url}


class LocalRefusal(MeshError):
    """A refusal on this machine, before any call. The message says what helps."""


class NoMesh(LocalRefusal):
    """No setting and no file names a mesh."""

    def __init__(self) -> None:
        super().__init__(
            Reason.DEPENDENCY_UNAVAILABLE,
            "no mesh found: name one with SPAWNMESH_URL, or start one here with `spawnmesh up`, which the"
            " package spawnmesh brings",
            facts={"dependency": "mesh"},
        )


def find_endpoints(settings: CommandSettings) -> Endpoints:
    """Find the endpoints in the settings if they name the session service or a URL, otherwise
    in `mesh.json`.

    Targets in the settings override those in the file. Relative paths in the file start at its
    directory. Raises NoMesh, and LocalRefusal INVALID_REQUEST for a malformed file.
    """
    named = {name: getattr(settings, f"{name.replace('-', '_')}_target") for name in SERVICES}
    given = {name: target for name, target in named.items() if target}
    if settings.url:
        host, _ = parse_url(settings.url)
        targets = dict.fromkeys(SERVICES, host) | given
        at_url = frozenset(SERVICES) - given.keys()
        audience = settings.token_audience
        return Endpoints(targets, settings.signing_key_file, audience, None, settings.url, at_url)
    if "session" in given:
        return Endpoints(given, settings.signing_key_file, settings.token_audience, None)
    try:
        found = _MeshFile.model_validate_json((settings.data / MESH_FILE).read_bytes())
    except OSError:
        raise NoMesh from None
    except ValidationError:
        raise LocalRefusal(
            Reason.INVALID_REQUEST, f"{MESH_FILE} cannot be read; `spawnmesh up` writes it again"
        ) from None
    targets = {name: target for name, target in found.targets.items() if name in SERVICES and target} | given
    if "session" not in targets:
        raise NoMesh
    keys = settings.data / found.keys / "client.pem" if found.keys is not None else None
    traces = settings.data / found.traces if found.traces is not None else None
    key_file, console = settings.signing_key_file or keys, found.console or ""
    return Endpoints(targets, key_file, settings.token_audience, traces, console=console)


def token_minter(endpoints: Endpoints, *, clock: Clock = utc_now) -> TokenMinter:
    """Return a minter with the mesh's signing key.

    Raises LocalRefusal TOKEN_MISSING if there is no key, or none that can be read.
    """
    if endpoints.key_file is None:
        raise LocalRefusal(
            Reason.TOKEN_MISSING,
            "there is neither SPAWNMESH_TOKEN nor a signing key of this mesh;"
            " its operator can give you a token",
        )
    try:
        return TokenMinter("client", endpoints.key_file, audience=endpoints.audience, clock=clock)
    except (OSError, ValueError, TypeError):
        raise LocalRefusal(Reason.TOKEN_MISSING, "the signing key of this mesh cannot be read") from None


def token_for(settings: CommandSettings, endpoints: Endpoints, *, admin: bool) -> Token:
    """Return the token of the settings without surrounding white space, or else mint one for
    each call.

    Raises LocalRefusal TOKEN_MISSING or TOKEN_INVALID.
    """
    given = settings.token.get_secret_value().strip()
    if given:
        if not _TOKEN.fullmatch(given):
            raise LocalRefusal(
                Reason.TOKEN_INVALID,
                "SPAWNMESH_TOKEN has a character that no token has, such as a space; set it again",
            )
        return given
    minter = token_minter(endpoints)
    if admin:
        return lambda: minter.admin_token(_SUBJECT, _TOKEN_SECONDS)
    return lambda: minter.client_token(settings.tenant, _SUBJECT, _TOKEN_SECONDS)
