"""Connect a command to the mesh and report refusals.

Commands of other packages use it, too.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError
from spawnmesh_client.token_peer import Token, UnknownPeer
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.interruptible import run_interruptible
from spawnmesh_runtime.tls_files import tls_files

from spawnmesh_command.cli.refusals import report
from spawnmesh_command.endpoints import Endpoints, LocalRefusal, find_endpoints, token_for
from spawnmesh_command.settings import CommandSettings

T = TypeVar("T")
_FORMS = {"url": ", which is http://host:port or https://host"}
"""The forms of settings whose value may hold a secret, so that no message shows it."""
_SURROGATES = ("\ud800", "\udfff")
"""Bytes of an argument that are not UTF-8 become such characters."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@contextmanager
def reported(*, as_json: bool) -> Iterator[None]:
    """Report a refusal in the block with one line, and end the command with exit code 1."""
    try:
        yield
    except MeshError as error:
        report(error, as_json=as_json)
        raise typer.Exit(1) from None
    except UnknownPeer as error:
        variable = f"SPAWNMESH_{error.name.replace('-', '_').upper()}_TARGET"
        message = f"the target of {error.name} is not known: set it with {variable}"
        report(LocalRefusal(Reason.DEPENDENCY_UNAVAILABLE, message), as_json=as_json)
        raise typer.Exit(1) from None
    except UnicodeEncodeError as error:
        refusal = not_text(error)
        if refusal is None:
            raise
        report(refusal, as_json=as_json)
        raise typer.Exit(1) from None


def not_text(error: Exception) -> LocalRefusal | None:
    """Return the refusal of an argument that is not UTF-8.

    Return None for any other error, also if the terminal cannot show a character.
    """
    if isinstance(error, UnicodeEncodeError) and any(
        _SURROGATES[0] <= char <= _SURROGATES[1] for char in error.object
    ):
        return LocalRefusal(Reason.INVALID_REQUEST, "an argument is no UTF-8 text")
    return None


def settings_of(context: typer.Context) -> CommandSettings:
    """Return the environment's settings, overridden by the global options.

    Raises LocalRefusal for malformed ones.
    """
    try:
        return CommandSettings(**(context.find_root().obj or {}))
    except (ValidationError, SettingsError) as error:
        raise malformed(error, "SPAWNMESH_") from None


def malformed(error: ValidationError | SettingsError, prefix: str, *options: str) -> LocalRefusal:
    """Return the refusal of malformed settings: it has names, but no values.

    `options` are the settings that did not come from variables with the prefix.
    """
    if isinstance(error, SettingsError):
        return LocalRefusal(Reason.INVALID_REQUEST, f"a list among the {prefix} variables is not JSON")
    places = [
        (str(item["loc"][0]), item["msg"].removeprefix("Value error, "))
        for item in error.errors()
        if item["loc"]
    ]
    for name, why in places:
        if name in options:
            return LocalRefusal(Reason.INVALID_REQUEST, f"--{name} {why}")
    fields = ", ".join(f"{prefix}{name}".upper() + _FORMS.get(name, "") for name, _ in places)
    return LocalRefusal(
        Reason.INVALID_REQUEST, f"settings cannot be read: {fields or 'they exclude each other'}"
    )


def with_mesh(
    context: typer.Context, body: Callable[[WireMesh], Awaitable[T]], *, as_json: bool, admin: bool = False
) -> T:
    """Run `body` with the mesh and return its result.

    `admin` mints an operator's token, if a token is minted.
    """
    with reported(as_json=as_json):
        return with_connected(settings_of(context), body, admin=admin)


def call_rpc(
    service: str,
    stub: Callable[[Any], Any],
    context: typer.Context,
    method: str,
    request: Any,
    *,
    as_json: bool,
    admin: bool = False,
    timeout_seconds: float = 10.0,
) -> Any:
    """Call one method of the service's stub and return the response, as `with_mesh` does."""

    async def body(mesh: WireMesh) -> Any:
        peer = mesh.service(service)
        rpc = getattr(stub(peer.channel), method)
        return await peer.unary(rpc, request, timeout_seconds=timeout_seconds)

    return with_mesh(context, body, as_json=as_json, admin=admin)


def with_connected(
    settings: CommandSettings, body: Callable[[WireMesh], Awaitable[T]], *, admin: bool = False
) -> T:
    """Run `body` with the mesh of these settings and return its result.

    Raises MeshError for a refusal.
    """
    endpoints = find_endpoints(settings)
    return run_interruptible(
        _connected(settings, endpoints, token_for(settings, endpoints, admin=admin), body)
    )


async def _connected(
    settings: CommandSettings, endpoints: Endpoints, token: Token, body: Callable[[WireMesh], Awaitable[T]]
) -> T:
    tls_files(settings)  # It says which of the files is unusable.
    async with connect_wire(**endpoints.addresses, token=token, settings=settings) as mesh:
        return await body(mesh)
