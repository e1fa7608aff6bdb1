"""The command `tenant update`: a tenant's settings by their names in the contract."""

import json
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from spawnmesh.session.v1.tenant_pb2 import Tenant, TenantSettings
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli.message_fields import field_problem
from spawnmesh_command.cli.refusals import print_error
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import print_json, print_tenant, value_of

_LIMITS = "attachments."
"""Settings whose 0 may be a value rather than the default, so that it cannot be a reset."""


def update(
    context: typer.Context,
    tenant_id: Annotated[str, typer.Argument(metavar="TENANT_ID", help="The tenant.")],
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help=(
                "A setting, such as max_spawn_depth=3, attachments.max_file_count=10,"
                " archive_after=3600s; may be repeated."
            ),
        ),
    ] = None,
    resets: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="FIELD", help="A setting to reset to its default; may be repeated."),
    ] = None,
    etag: Annotated[str, typer.Option(help="Only if the tenant still has this etag.")] = "",
    as_json: AsJson = False,
) -> None:
    """Change a tenant's name and settings; others stay.

    `tenant show` prints fields, values and the etag.
    """
    _refuse_contradictions(changes or [], resets or [])
    settings, paths = _parse(changes or [])
    paths += [f"settings.{field}" for field in resets or []]
    if name is not None:
        paths.append("display_name")
    if not paths:
        raise typer.BadParameter("nothing to change: give --set, --reset or --name")

    async def body(mesh: WireMesh) -> tuple[Tenant, Sequence[str]]:
        return await mesh.update_tenant(
            tenant_id, paths, display_name=name or "", settings=settings, etag=etag
        )

    tenant, stale = with_mesh(context, body, as_json=as_json, admin=True)
    if as_json:
        print_json({"tenant": value_of(tenant), "stale_services": list(stale)})
        return
    print_tenant(tenant, settings_of_tenant(tenant.settings))
    if stale:
        print_error(f"not updated yet, and updated as soon as they answer: {', '.join(stale)}")


def settings_of_tenant(settings: TenantSettings) -> list[str]:
    """Return the settings as `--set` accepts them."""
    fields = MessageToDict(settings, preserving_proto_field_name=True)
    return [
        f"{path}={value if isinstance(value, str) else json.dumps(value)}" for path, value in _leaves(fields)
    ]


def _parse(changes: Sequence[str]) -> tuple[TenantSettings, list[str]]:
    settings, paths = TenantSettings(), []
    for change in changes:
        field, equals, text = change.partition("=")
        if not equals:
            raise typer.BadParameter(f"{change!r} is not FIELD=VALUE", param_hint="--set")
        value: Any = _value(text)
        for name in reversed(field.split(".")):
            value = {name: value}
        if problem := field_problem(value, TenantSettings.DESCRIPTOR, in_json=False):
            raise typer.BadParameter(problem, param_hint="--set")
        try:
            settings.MergeFrom(ParseDict(value, TenantSettings()))
        except ParseError as error:
            raise typer.BadParameter(f"{change!r}: {error}", param_hint="--set") from None
        paths.append(f"settings.{field}")
    return settings, paths


def _refuse_contradictions(changes: Sequence[str], resets: Sequence[str]) -> None:
    """End the command for options that undo each other, or that one request cannot express."""
    given = [(change.partition("=")[0], f"--set {change}") for change in changes]
    for (field, option), (other, another) in combinations(given, 2):
        if field == other and option != another:
            raise typer.BadParameter(f"{option} and {another} contradict each other")
    for (field, option), reset in product(given, resets):
        if f"{field}.".startswith(f"{reset}.") or f"{reset}.".startswith(f"{field}."):
            raise typer.BadParameter(f"{option} and --reset {reset} contradict each other")
        if field.startswith(_LIMITS) and reset.startswith(_LIMITS):
            raise typer.BadParameter(
                f"{option} and --reset {reset} take two commands: what is set together is set whole"
            )


def _value(text: str) -> Any:
    """Parse the text as JSON if possible; otherwise it is a word or a duration."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for name, below in value.items():
        yield from _leaves(below, f"{path}.{name}" if path else name)
