"""The addresses of a mesh and the token for it: given, in the environment, or on this machine."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.settings import SERVICES, MeshEnvironment
from spawnmesh_client.token_peer import Token

MESH_FILE = "mesh.json"
TOKEN_FILE = "client.token"  # noqa: S105 - a name, not a secret
_PORTS = {"http": 80, "https": 443}
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class MeshAddress:
    """A target for each service, and the scheme of the URL that they come from, if any."""

    targets: Mapping[str, str]
    scheme: str
    token: Token = field(repr=False)


def find_mesh(
    url: str, targets: Mapping[str, str] | None, token: Token | None, environment: MeshEnvironment
) -> MeshAddress:
    """Return the mesh that the caller names, else that of the environment, else the local one.

    The token of the local mesh is used for no other mesh. Raises ValueError for a malformed URL or
    an unknown service, Unavailable if there is no mesh, and Unauthenticated if there is no token.
    """
    if url and targets:
        raise ValueError("give a url or targets, not both: a url names one address for all services")
    if url or (not targets and environment.url):
        host, scheme = parse_url(url or environment.url)
        return MeshAddress(dict.fromkeys(SERVICES, host), scheme, _token(token, environment))
    given = dict(targets or environment.targets)
    if given:
        _check(given)
        return MeshAddress(given, "", _token(token, environment))
    local = _local_targets(environment.data)
    if token is None and not environment.token:
        token = _local_token(environment.data)
    return MeshAddress(local, "", _token(token, environment))


def parse_url(url: str) -> tuple[str, str]:
    """Return `host:port` and the scheme. Raises ValueError for anything but an origin."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"the url of a mesh is http://host:port or https://host, not {url!r}")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"the url of a mesh has no path, query or user: {url!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or _PORTS[parts.scheme]}", parts.scheme


def _check(targets: Mapping[str, str]) -> None:
    unknown = sorted(set(targets) - set(SERVICES))
    if unknown:
        raise ValueError(f"there is no service {', '.join(unknown)}; the services are {', '.join(SERVICES)}")
    if not targets.get("session"):
        raise ValueError("the target of `session` is missing: a mesh is entered through it")


def _local_targets(data: Path) -> dict[str, str]:
    try:
        found = json.loads((data / MESH_FILE).read_bytes())["targets"]
        targets = {name: str(found[name]) for name in SERVICES if found.get(name)}
    except OSError:
        raise MeshError(
            Reason.DEPENDENCY_UNAVAILABLE,
            "no mesh found: pass `url` to connect, set SPAWNMESH_URL, or start one here with `spawnmesh up`,"
            " which the package spawnmesh brings",
            facts={"dependency": "mesh"},
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        targets = {}
    if "session" not in targets:
        raise MeshError(
            Reason.DEPENDENCY_UNAVAILABLE,
            f"{MESH_FILE} names no session service; `spawnmesh up` writes it again",
            facts={"dependency": "mesh"},
        )
    return targets


def _local_token(data: Path) -> Token | None:
    """Return the token file's reader, so that a client outlives a restart of the local mesh."""
    file = data / TOKEN_FILE
    return (lambda: file.read_text().strip()) if file.is_file() else None


def _token(given: Token | None, environment: MeshEnvironment) -> Token:
    token = given if given is not None else environment.token
    if not token:
        raise MeshError(
            Reason.TOKEN_MISSING,
            "there is no token: pass `token` to connect or set SPAWNMESH_TOKEN;"
            " the operator of the mesh makes one with `spawnmesh token`",
        )
    if isinstance(token, str) and not _TOKEN.fullmatch(token):
        raise MeshError(Reason.TOKEN_INVALID, "the token has a character that no token has, such as a space")
    return token
