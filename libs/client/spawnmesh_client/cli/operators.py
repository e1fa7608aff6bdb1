"""Commands for operators of a mesh: tenants, tokens, keys and checks."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text
from spawnmesh_core.ids import AGENT_ID, TENANT_ID
from spawnmesh_runtime.claims import MAX_LIMITS
from spawnmesh_runtime.key_files import KeyUnusable, make_keys

from spawnmesh_client.cli import tenant_removal as tenant_ends
from spawnmesh_client.cli.refusals import print_error
from spawnmesh_client.cli.run import AsJson, reported, settings_of, with_mesh
from spawnmesh_client.cli.show import console, plain, print_json, print_tenants, value_of
from spawnmesh_client.doctor.deep import examine_deep
from spawnmesh_client.doctor.examine import examine
from spawnmesh_client.doctor.finding import Finding
from spawnmesh_client.endpoints import find_endpoints, token_minter
from spawnmesh_client.mesh import Mesh

_MARKS = {True: ("ok", "green"), False: ("!!", "red"), None: ("--", "dim")}


def add_commands(app: typer.Typer) -> None:
    """Add `tenant create`, `list`, `show`, `status`, `update` and `delete`, `token`, `keys` and
    `doctor`.
    """
    tenants = typer.Typer(no_args_is_help=True, help="Tenants of the mesh.")
    tenants.command("create")(create_tenant)
    tenants.command("list")(list_tenants)
    tenant_ends.add_commands(tenants)
    app.add_typer(tenants, name="tenant")
    app.command()(token)
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


def token(
    context: typer.Context,
    admin: Annotated[bool, typer.Option("--admin", help="An operator's token, for no tenant.")] = False,
    runner: Annotated[
        bool,
        typer.Option("--runner", help="A token of a harness, which claims runs of each --tenant."),
    ] = False,
    tenant: Annotated[
        list[str] | None,
        typer.Option(metavar="TENANT", help="With --runner: a tenant to serve; may be repeated."),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="AGENT", help="With --runner: an agent to serve, else all; may be repeated."),
    ] = None,
    subject: Annotated[str, typer.Option(help="The token's subject.")] = "client",
    hours: Annotated[float, typer.Option(min=0.01, max=8760, help="The token's lifetime in hours.")] = 12.0,
    as_json: AsJson = False,
) -> None:
    """Mint a token with this mesh's signing key, for the tenant of --tenant before the command.

    Its holder can use the mesh until it expires. The holder of a runner's token can only claim runs
    of the tenants and agents that it names.
    """
    _check_options(admin=admin, runner=runner, tenants=tenant or (), agents=agent or ())
    with reported(as_json=as_json):
        settings = settings_of(context)
        minter = token_minter(find_endpoints(settings))
    seconds = hours * 3600
    named: dict[str, object] = {"tenant_id": "" if admin or runner else settings.tenant}
    if runner:
        made = minter.runner_token(subject, seconds, tenants=tenant or (), agents=agent or ())
        named |= {"tenants": tenant, "agents": agent or []}
    elif admin:
        made = minter.admin_token(subject, seconds)
    else:
        made = minter.client_token(settings.tenant, subject, seconds)
    if as_json:
        print_json({"token": made, **named, "ttl_seconds": seconds})
    else:
        print(made)


def _check_options(*, admin: bool, runner: bool, tenants: Sequence[str], agents: Sequence[str]) -> None:
    """Raise BadParameter for options that make no token which the mesh accepts."""
    if not runner:
        if tenants or agents:
            raise typer.BadParameter(
                "--tenant and --agent here need --runner; others: spawnmesh --tenant T token"
            )
        return
    if admin:
        raise typer.BadParameter("--admin and --runner exclude each other")
    if not tenants:
        raise typer.BadParameter("--runner needs at least one --tenant")
    if max(len(tenants), len(agents)) > MAX_LIMITS:
        raise typer.BadParameter(f"a token names at most {MAX_LIMITS} tenants and {MAX_LIMITS} agents")
    for one in tenants:
        if TENANT_ID.fullmatch(one) is None:
            raise typer.BadParameter(
                f"{one!r} is not a tenant id: 2 to 39 lower-case letters, digits and `-`"
            )
    for one in agents:
        if AGENT_ID.fullmatch(one) is None:
            raise typer.BadParameter(
                f"{one!r} is not an agent id: 1 to 63 lower-case letters, digits, `_` and `-`"
            )


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

    async def body(mesh: Mesh) -> list[Finding]:
        settings = settings_of(context)
        endpoints = find_endpoints(settings)
        # First, since the token's tenant may have to be created.
        deeper = await examine_deep(mesh, settings, endpoints) if deep else []
        return [*await examine(mesh, endpoints, settings.tenant), *deeper]

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
