"""Commands for one tenant: show, update and delete it, and show what each service stores of it."""

import asyncio
from typing import Annotated

import typer
from spawnmesh.session.v1.tenant_pb2 import TENANT_STATE_DELETED, Tenant
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_command.cli.refusals import print_error
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import print_json, print_tenant, print_tenant_status, value_of
from spawnmesh_command.cli.tenant_update import settings_of_tenant, update

TenantId = Annotated[str, typer.Argument(metavar="TENANT_ID", help="The tenant.")]
_POLL_SECONDS = 0.5


def add_commands(tenants: typer.Typer) -> None:
    """Add `tenant show`, `tenant status`, `tenant update` and `tenant delete`."""
    tenants.command()(show)
    tenants.command()(status)
    tenants.command()(update)
    tenants.command()(delete)


def show(context: typer.Context, tenant_id: TenantId, as_json: AsJson = False) -> None:
    """Show one tenant, or the progress of its deletion."""
    _print(with_mesh(context, lambda mesh: mesh.tenant(tenant_id), as_json=as_json, admin=True), as_json)


def status(context: typer.Context, tenant_id: TenantId, as_json: AsJson = False) -> None:
    """Show the tenant in each service: its state there, its settings, and what is stored of it."""
    services = with_mesh(context, lambda mesh: mesh.tenant_status(tenant_id), as_json=as_json, admin=True)
    if as_json:
        print_json({"services": [value_of(service) for service in services]})
    else:
        print_tenant_status(services)


def delete(
    context: typer.Context,
    tenant_id: TenantId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    wait_for_it: Annotated[bool, typer.Option("--wait", help="Wait until all its data is deleted.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait at most.")] = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Delete a tenant with all its data: its runs are killed, then sessions, transcripts and the
    bucket are deleted.

    Deleted data cannot be restored.
    """
    if not yes:
        typer.confirm(f"Delete tenant {tenant_id} with all its data?", abort=True, err=True)

    async def body(mesh: WireMesh) -> Tenant:
        tenant = await mesh.delete_tenant(tenant_id)
        give_up = monotonic_seconds() + timeout
        while wait_for_it and tenant.state != TENANT_STATE_DELETED and monotonic_seconds() < give_up:
            await asyncio.sleep(_POLL_SECONDS)
            tenant = await mesh.tenant(tenant_id)
        return tenant

    tenant = with_mesh(context, body, as_json=as_json, admin=True)
    _print(tenant, as_json)
    if wait_for_it and tenant.state != TENANT_STATE_DELETED:
        if not as_json:
            print_error(
                f"not done after {timeout:g} s; the deletion continues: `spawnmesh tenant show {tenant_id}`"
            )
        raise typer.Exit(1)


def _print(tenant: Tenant, as_json: bool) -> None:
    if as_json:
        print_json(value_of(tenant))
    else:
        print_tenant(tenant, settings_of_tenant(tenant.settings))
