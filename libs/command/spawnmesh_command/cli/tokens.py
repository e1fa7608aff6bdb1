"""Commands for tokens: mint one with the signing key of this mesh, and revoke one."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import jwt
import typer
from spawnmesh_client.revocations import revoke_token
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.ids import AGENT_ID, TENANT_ID
from spawnmesh_runtime.caller import ROLES
from spawnmesh_runtime.claims import MAX_LIMITS, token_id_of

from spawnmesh_command.cli.run import AsJson, reported, settings_of, with_mesh
from spawnmesh_command.cli.show import print_json
from spawnmesh_command.endpoints import find_endpoints, token_minter


class RoleName(StrEnum):
    """The roles that a token can have."""

    READER = "reader"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"


def add_commands(app: typer.Typer) -> None:
    """Add `token` and `token revoke`."""
    tokens = typer.Typer()
    tokens.callback(invoke_without_command=True)(token)
    tokens.command()(revoke)
    app.add_typer(tokens, name="token")


def token(
    context: typer.Context,
    role: Annotated[
        RoleName | None,
        typer.Option(help="The highest role of the token's holder in its tenant; operator if not given."),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="An operator's token, for no tenant.")] = False,
    runner: Annotated[
        bool,
        typer.Option("--runner", help="A token of a harness, which claims runs of each --tenant."),
    ] = False,
    tenant: Annotated[
        list[str] | None,
        typer.Option(metavar="TENANT", help="The tenant. With --runner: a tenant to serve; may be repeated."),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="AGENT", help="With --runner: an agent to serve, else all; may be repeated."),
    ] = None,
    subject: Annotated[str, typer.Option(help="The token's subject.")] = "client",
    hours: Annotated[
        float,
        typer.Option(
            min=0.01, max=8760, help="The token's lifetime in hours. By default, services accept 720 at most."
        ),
    ] = 12.0,
    as_json: AsJson = False,
) -> None:
    """Mint a token with this mesh's signing key, for the tenant of --tenant.

    Its holder can use the mesh until it expires or is revoked. The holder of a runner's token can
    only claim runs of the tenants and agents that it names. `reader` reads, `user` also spawns and
    sends messages, `operator` also kills, deletes and writes agents and plugins, and `admin` is an
    operator of the mesh as well.
    """
    if context.invoked_subcommand is not None:
        return
    _check_options(admin=admin, runner=runner, role=role, tenants=tenant or (), agents=agent or ())
    if tenant and not runner:
        context.find_root().obj["tenant"] = tenant[0]
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
        made = minter.client_token(settings.tenant, subject, seconds, role=ROLES[role] if role else None)
        named |= {"role": role or RoleName.OPERATOR}
    if as_json:
        print_json({"token": made, **named, "ttl_seconds": seconds})
    else:
        print(made)


def _check_options(
    *, admin: bool, runner: bool, role: str | None, tenants: Sequence[str], agents: Sequence[str]
) -> None:
    """Raise BadParameter for options that make no token which the mesh accepts."""
    if role and (admin or runner):
        raise typer.BadParameter("--role is for the token of a client, without --admin and --runner")
    if not runner:
        if agents or len(tenants) > 1:
            raise typer.BadParameter("several --tenant, and --agent, need --runner")
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


def revoke(
    context: typer.Context,
    token_or_id: Annotated[str, typer.Argument(metavar="TOKEN", help="The token, or its id (`jti`).")],
    admin: Annotated[
        bool, typer.Option("--admin", help="As an operator of the mesh: a token of any tenant, or of none.")
    ] = False,
    tenant: Annotated[
        str, typer.Option(metavar="TENANT", help="The tenant; with --admin and an id, that of the token.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Revoke a token. Every service refuses it within a second, and as long as it could be valid.

    With the token of a harness, those of the runs that it claimed are revoked.

    The token itself is not sent. A revocation cannot be withdrawn.
    """
    if tenant and not admin:
        context.find_root().obj["tenant"] = tenant
    claims = _claims_of(token_or_id)
    if not admin:
        _check_is_of_tenant(claims or {}, settings_of(context).tenant)
    token_id = token_or_id if claims is None else token_id_of(claims, token_or_id)
    named_tenant = tenant or str((claims or {}).get("tenant", ""))

    async def body(mesh: WireMesh) -> datetime:
        return await revoke_token(
            mesh, token_id, tenant_id=named_tenant if admin else "", expire_time=_expiry_of(claims or {})
        )

    expire_time = with_mesh(context, body, as_json=as_json, admin=admin)
    if as_json:
        print_json({"token_id": token_id, "expire_time": expire_time.isoformat()})
    else:
        print(f"{token_id} is refused until {expire_time:%Y-%m-%d %H:%M:%S} UTC")


def _check_is_of_tenant(claims: dict[str, Any], tenant_id: str) -> None:
    """Raise BadParameter for a token that a client of the tenant cannot revoke."""
    kind = claims.get("kind")
    if kind == "admin":
        raise typer.BadParameter("this is the token of an operator of the mesh: revoke it with --admin")
    if kind == "runner" and claims.get("tenants") != [tenant_id]:
        raise typer.BadParameter(
            f"this is the token of a harness that is not for the tenant {tenant_id} alone:"
            " revoke it with --admin"
        )


def _claims_of(token_or_id: str) -> dict[str, Any] | None:
    """Return the claims of a token, which are not verified; None for an id."""
    try:
        claims: dict[str, Any] = jwt.decode(token_or_id, options={"verify_signature": False})
    except jwt.PyJWTError:
        return None
    return claims


def _expiry_of(claims: dict[str, Any]) -> datetime | None:
    expiry = claims.get("exp")
    try:
        return datetime.fromtimestamp(expiry, UTC) if isinstance(expiry, int | float) else None
    except (ValueError, OverflowError, OSError):
        return None
