"""Where the mesh is that the command speaks to, and what vouches for the person at the terminal."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError
from spawnmesh_core.clock import Clock, utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.tokens import TokenMinter

from spawnmesh_client.settings import ClientSettings
from spawnmesh_client.token_peer import Token

MESH_FILE = "mesh.json"
SERVICES = ("session", "transcript", "attachment-blob", "model-router", "hook")
_TOKEN_SECONDS = 300.0  # Of a token made for one call.
_TOKEN = re.compile(r"[!-~]+")
_SUBJECT = "spawnmesh-command"


class _MeshFile(BaseModel):
    targets: dict[str, str]
    keys: Path | None = None
    traces: Path | None = None


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """`targets` by kebab id, `session` always among them. `traces` is the file of spans of a mesh on this machine.

    `audience` is whom tokens that are signed with the key are made for.
    """

    targets: Mapping[str, str]
    key_file: Path | None
    audience: str
    traces: Path | None


class LocalRefusal(MeshError):
    """Refused on this machine, before any service was asked; the message says what helps."""


class NoMesh(LocalRefusal):
    """Nothing says where a mesh is."""

    def __init__(self) -> None:
        super().__init__(
            Reason.DEPENDENCY_UNAVAILABLE,
            "no mesh found: run `make up`, or name one with SPAWNMESH_SESSION_TARGET",
            facts={"dependency": "mesh"},
        )


def locate(settings: ClientSettings) -> Whereabouts:
    """By the settings, where they name the session service; else by `mesh.json`, single targets in the settings going first.

    Relative paths in the file start at its own directory. Raises NoMesh, and LocalRefusal INVALID_REQUEST for a file that is none of ours.
    """
    named = {name: getattr(settings, f"{name.replace('-', '_')}_target") for name in SERVICES}
    given = {name: target for name, target in named.items() if target}
    if settings.session_target:
        return Whereabouts(given, settings.signing_key_file, settings.token_audience, None)
    try:
        found = _MeshFile.model_validate_json((settings.data / MESH_FILE).read_bytes())
    except OSError:
        raise NoMesh from None
    except ValidationError:
        raise LocalRefusal(Reason.INVALID_REQUEST, f"{MESH_FILE} cannot be read; `make up` writes it anew") from None
    targets = {name: target for name, target in found.targets.items() if name in SERVICES and target} | given
    if "session" not in targets:
        raise NoMesh
    keys = settings.data / found.keys / "client.pem" if found.keys is not None else None
    traces = settings.data / found.traces if found.traces is not None else None
    return Whereabouts(targets, settings.signing_key_file or keys, settings.token_audience, traces)


def minter_of(where: Whereabouts, *, clock: Clock = utc_now) -> TokenMinter:
    """Signs tokens with the key at hand. Raises LocalRefusal TOKEN_MISSING where there is none, or none that can be read."""
    if where.key_file is None:
        raise LocalRefusal(
            Reason.TOKEN_MISSING,
            "there is neither SPAWNMESH_TOKEN nor a signing key of this mesh; its operator can give you a token",
        )
    try:
        return TokenMinter("client", where.key_file, audience=where.audience, clock=clock)
    except (OSError, ValueError, TypeError):
        raise LocalRefusal(Reason.TOKEN_MISSING, "the signing key of this mesh cannot be read") from None


def token_for(settings: ClientSettings, where: Whereabouts, *, admin: bool) -> Token:
    """The token that is set, without space around it; else a fresh one for each call. Raises LocalRefusal TOKEN_MISSING, or TOKEN_INVALID."""
    given = settings.token.get_secret_value().strip()
    if given:
        if not _TOKEN.fullmatch(given):
            raise LocalRefusal(
                Reason.TOKEN_INVALID,
                "SPAWNMESH_TOKEN has a character that no token has, such as a space or the end of a line; set it anew",
            )
        return given
    minter = minter_of(where)
    if admin:
        return lambda: minter.admin_token(_SUBJECT, _TOKEN_SECONDS)
    return lambda: minter.client_token(settings.tenant, _SUBJECT, _TOKEN_SECONDS)
