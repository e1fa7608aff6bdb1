"""Commands for operators of a mesh: tenants, tokens, keys and checks."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text
from spawnmesh_client.wire import WireMesh
from spawnmesh_runtime.key_files import KeyUnusable, make_keys

from spawnmesh_command.cli import tenant_removal as tenant_ends
from spawnmesh_command.cli import tokens
from spawnmesh_command.cli.refusals import print_error
from spawnmesh_command.cli.run import AsJson, settings_of, with_mesh
from spawnmesh_command.cli.show import console, plain, print_json, print_tenants, value_of
from spawnmesh_command.doctor.deep import examine_deep
from spawnmesh_command.doctor.examine import examine
from spawnmesh_command.doctor.finding import Finding
from spawnmesh_command.endpoints import find_endpoints

_MARKS = {True: ("ok", "green"), False: ("!!", "red"), None: ("--", "dim")}


def add_commands(app: typer.Typer) -> None:
    """Add `tenant create`, `list`, `show`, `status`, `update` and `delete`, `token`,
    `token revoke`, `keys` and `doctor`.
    """
    tenants = typer.Typer(no_args_is_help=True, help="Tenants of the mesh.")
    tenants.command("create")(create_tenant)
    tenants.command("list")(list_tenants)
    tenant_ends.add_commands(tenants)
    app.add_typer(tenants, name="tenant")
    tokens.add_commands(app)
    app.command()(keys)
    app.command()(doctor)


def create_tenant(
    context: typer.Context,
    tenant_id: Annotated[
        str, typer.Argument(metavar="TENANT_ID", help="Lower-case letters, digits and `-`.")
    ],
    name: Annotated[str, typer.Option(help="A name for people.")] = "",
    as_json: AsJson = False,
) -> None:
    """Create a tenant with the default settings; an existing one stays as it is."""
    tenant = with_mesh(
        context, lambda mesh: mesh.create_tenant(tenant_id, display_name=name), as_json=as_json, admin=True
    )
    if as_json:
        print_json(value_of(tenant))
    else:
        print_tenants([tenant])


def list_tenants(context: typer.Context, as_json: AsJson = False) -> None:
    """List every tenant."""
    tenants = with_mesh(context, lambda mesh: mesh.tenants(), as_json=as_json, admin=True)
    if as_json:
        print_json({"tenants": [value_of(tenant) for tenant in tenants]})
    else:
        print_tenants(tenants)


def keys(
    directory: Annotated[
        Path, typer.Argument(help="The directory of `<issuer>.pem` and jwks.json; existing keys stay.")
    ],
    drop_old: Annotated[
        bool,
        typer.Option("--drop-old", help="Drop public keys of these issuers whose private key is missing."),
    ] = False,
) -> None:
    """Make the signing keys of a mesh and the public key set that verifies them.

    Delete `<issuer>.pem` first to give that issuer a new key. Public keys that are in jwks.json
    stay in it, behind those of the files.
    """
    try:
        print(make_keys(directory, drop_old=drop_old))
    except (OSError, KeyUnusable) as error:
        print_error(f"the keys cannot be made: {error}")
        raise typer.Exit(1) from None


def doctor(
    context: typer.Context,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help=(
                "Also store a file, run a session, and check certificates, providers' keys and the collector."
            ),
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every service with what it depends on, the token and the clocks.

    The exit code is 1 if something is wrong.
    """

    async def body(mesh: WireMesh) -> list[Finding]:
        settings = settings_of(context)
        endpoints = find_endpoints(settings)
        # First, since the token's tenant may have to be created.
        deeper = await examine_deep(mesh, settings, endpoints) if deep else []
        return [*await examine(mesh, endpoints, settings), *deeper]

    findings = with_mesh(context, body, as_json=as_json)
    wrong = any(finding.ok is False for finding in findings)
    if as_json:
        print_json({"ok": not wrong, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    if wrong:
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    grid = Table.grid(padding=(0, 2))
    printed: set[str] = set()
    for finding in findings:
        mark, style = _MARKS[finding.ok]
        # One lost database is a line of every service; the advice is the same.
        advice = f" -> {finding.advice}" if finding.advice and finding.advice not in printed else ""
        printed.add(finding.advice)
        grid.add_row(
            Text(mark, style=style), Text(finding.name), Text(plain(finding.detail + advice, keep=""))
        )
    console().print(grid)
