"""Commands for one tenant: show, update and delete it, and show what each service stores of it."""

from typing import Annotated

import typer
from spawnmesh.session.v1.tenant_pb2 import Tenant
from spawnmesh_client.tenants import Tenants, delete_tenant
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli.operations import print_operation, shown_progress
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import print_json, print_tenant, print_tenant_status, value_of
from spawnmesh_command.cli.tenant_update import settings_of_tenant, update

TenantId = Annotated[str, typer.Argument(metavar="TENANT_ID", help="The tenant.")]


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
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Start the operation, print it, and do not wait for it.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="The longest time to wait, in seconds.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete a tenant with all its data: its runs are killed, then sessions, transcripts and the
    bucket are deleted. Wait until nothing is left.

    Deleted data cannot be restored. An operation deletes it, which goes on if this command is
    interrupted.
    """
    if not yes:
        typer.confirm(f"Delete tenant {tenant_id} with all its data?", abort=True, err=True)
    if no_wait:
        started = with_mesh(
            context, lambda mesh: Tenants(mesh).delete(tenant_id), as_json=as_json, admin=True
        )
        print_operation(started, as_json=as_json)
        return

    async def body(mesh: WireMesh) -> Tenant:
        with shown_progress(tenant_id) as show:
            return await delete_tenant(mesh, tenant_id, timeout_seconds=timeout, on_progress=show)

    _print(with_mesh(context, body, as_json=as_json, admin=True), as_json)


def _print(tenant: Tenant, as_json: bool) -> None:
    if as_json:
        print_json(value_of(tenant))
    else:
        print_tenant(tenant, settings_of_tenant(tenant.settings))
