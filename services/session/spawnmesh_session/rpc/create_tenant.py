"""CreateTenant.

Creates a tenant and its bucket, with an agent named `default` that may use every built-in tool and
spawn every agent.
"""

from spawnmesh.session.v1.tenant_service_pb2 import CreateTenantRequest, CreateTenantResponse
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.audit.store import hide_events
from spawnmesh_postgres.database import Connection
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.agents import DEFAULT_AGENT
from spawnmesh_session.domain.tenant_classes import check_tenant_class
from spawnmesh_session.domain.tenants import DeletionStep
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_tenant
from spawnmesh_session.rpc.tenant_messages import check_call_limits, parse_settings
from spawnmesh_session.store import agents, tenant_deletions, tenants


async def create_tenant(
    request: CreateTenantRequest, caller: Caller, deps: Dependencies
) -> CreateTenantResponse:
    """Create the tenant with its bucket and its default agent.

    Every step may be repeated, so the next call completes one that was interrupted.
    """
    tenant_id, display_name = request.tenant_id, request.display_name
    settings = parse_settings(request.settings)
    check_call_limits(settings, deps.call_limits.ceiling)
    check_tenant_class(request.settings.tenant_class, deps.tenant_classes)
    async with deps.database.pipelined(tenant_id) as connection:
        last_version = await _forget_deletion(connection, tenant_id)
        await tenants.insert_tenant(
            connection, tenant_id, display_name, settings, settings_version=last_version + 1
        )
        tenant = await tenants.get_existing_tenant(connection, tenant_id)
        if tenant.settings != settings or tenant.display_name != display_name:
            raise MeshError(
                Reason.ALREADY_EXISTS,
                f"tenant {tenant_id} exists with other settings",
                facts={"tenant_id": tenant_id},
            )
        await agents.insert_agent(connection, tenant_id, DEFAULT_AGENT)
        push_id = await deps.settings_push.begin(connection, tenant_id)
    for error in (await deps.settings_push.push(tenant, push_id)).values():
        raise error
    async with deps.database.pipelined(tenant_id) as connection:
        await _forget_deletion(connection, tenant_id)
        await tenants.mark_tenant_ready(connection, tenant_id)
        if "call_limits" in settings:
            await tenants.notify_of_call_limits(connection)
        tenant = await tenants.get_existing_tenant(connection, tenant_id)
    return CreateTenantResponse(tenant=render_tenant(tenant))


async def _forget_deletion(connection: Connection, tenant_id: str) -> int:
    """Remove the report of a finished deletion, hide the audit events of the deleted tenant from
    the new one, and keep new deletions from beginning.

    Return the last version of the deleted tenant's settings, which replicas may remember; 0 if
    there was no deletion. Raise CONFLICT while a deletion is in progress.
    """
    found = await tenants.enter_tenant(connection, tenant_id)
    if found is None or found.deletion is None:
        return 0
    if found.deletion.step != DeletionStep.DONE:
        raise MeshError(
            Reason.CONFLICT,
            f"tenant {tenant_id} is being deleted; create it again once it is",
            retry_after_seconds=5.0,
            facts={"tenant_id": tenant_id},
        )
    await tenant_deletions.forget_tenant_deletion(connection, tenant_id)
    await hide_events(connection, tenant_id)
    return found.deletion.settings_version
