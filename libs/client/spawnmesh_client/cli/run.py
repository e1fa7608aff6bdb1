"""How a command finds the mesh, speaks to it, and ends when it is refused. Commands from other packages use this too."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.foreground import run_in_foreground

from spawnmesh_client.cli.refusals import report
from spawnmesh_client.mesh import Mesh, UnknownPeer, connect
from spawnmesh_client.settings import ClientSettings
from spawnmesh_client.token_peer import Token
from spawnmesh_client.whereabouts import LocalRefusal, Whereabouts, locate, token_for

T = TypeVar("T")
_SURROGATES = ("\ud800", "\udfff")
"""What bytes of an argument become that are no UTF-8."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@contextmanager
def reported(*, as_json: bool) -> Iterator[None]:
    """A refusal in the block is told in one line, and the command ends with exit code 1."""
    try:
        yield
    except MeshError as error:
        report(error, as_json=as_json)
        raise typer.Exit(1) from None
    except UnknownPeer as error:
        told = (
            f"nothing says where {error.name} is: name it with SPAWNMESH_{error.name.replace('-', '_').upper()}_TARGET"
        )
        report(LocalRefusal(Reason.DEPENDENCY_UNAVAILABLE, told), as_json=as_json)
        raise typer.Exit(1) from None
    except UnicodeEncodeError as error:
        refusal = not_text(error)
        if refusal is None:
            raise
        report(refusal, as_json=as_json)
        raise typer.Exit(1) from None


def not_text(error: Exception) -> LocalRefusal | None:
    """What is told of an argument that is no UTF-8. None for any other error, and where it is the terminal that cannot show something."""
    if isinstance(error, UnicodeEncodeError) and any(_SURROGATES[0] <= char <= _SURROGATES[1] for char in error.object):
        return LocalRefusal(Reason.INVALID_REQUEST, "an argument is no UTF-8 text")
    return None


def settings_of(context: typer.Context) -> ClientSettings:
    """The environment's settings under the options given before the command's name. Raises LocalRefusal for malformed ones."""
    try:
        return ClientSettings(**(context.find_root().obj or {}))
    except (ValidationError, SettingsError) as error:
        raise malformed(error, "SPAWNMESH_") from None


def malformed(error: ValidationError | SettingsError, prefix: str, *options: str) -> LocalRefusal:
    """What is told of settings that cannot be read: names, and never values. `options` are those that were not in variables of the prefix."""
    if isinstance(error, SettingsError):
        return LocalRefusal(Reason.INVALID_REQUEST, f"a list among the {prefix} variables is not JSON")
    places = [
        (str(item["loc"][0]), item["msg"].removeprefix("Value error, ")) for item in error.errors() if item["loc"]
    ]
    for name, why in places:
        if name in options:
            return LocalRefusal(Reason.INVALID_REQUEST, f"--{name} {why}")
    fields = ", ".join(f"{prefix}{name}".upper() for name, _ in places)
    return LocalRefusal(Reason.INVALID_REQUEST, f"settings cannot be read: {fields or 'they exclude each other'}")


def with_mesh(context: typer.Context, body: Callable[[Mesh], Awaitable[T]], *, as_json: bool, admin: bool = False) -> T:
    """What `body` makes of the mesh that the command is pointed at. `admin` asks for an operator's token where one is made here."""
    with reported(as_json=as_json):
        return with_connected(settings_of(context), body, admin=admin)


def with_connected(settings: ClientSettings, body: Callable[[Mesh], Awaitable[T]], *, admin: bool = False) -> T:
    """What `body` makes of the mesh of these settings. Raises MeshError where it is refused."""
    where = locate(settings)
    return run_in_foreground(_connected(settings, where, token_for(settings, where, admin=admin), body))


async def _connected(
    settings: ClientSettings, where: Whereabouts, token: Token, body: Callable[[Mesh], Awaitable[T]]
) -> T:
    targets = {name.replace("-", "_"): target for name, target in where.targets.items()}
    async with connect(**targets, token=token, settings=settings) as mesh:
        return await body(mesh)
