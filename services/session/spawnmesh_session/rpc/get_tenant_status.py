"""GetTenantStatus. Returns what each service knows and stores of a tenant."""

import asyncio

from spawnmesh.session.v1.tenant_service_pb2 import (
    GetTenantStatusRequest,
    GetTenantStatusResponse,
    ServiceTenantStatus,
)
from spawnmesh.tenancy.v1 import tenant_status_pb2 as status_pb
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.tenant_participant_servicer import render_stored
from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.impersonation import impersonate

from spawnmesh_session.clients.tenant_participants import ParticipantClient
from spawnmesh_session.domain.tenants import DeletedTenant, Tenant, TenantDeletion
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import tenants
from spawnmesh_session.store.tenant_deletions import TENANT_TABLES


async def get_tenant_status(
    request: GetTenantStatusRequest, caller: Caller, deps: Dependencies
) -> GetTenantStatusResponse:
    """Return the status of the tenant here and, read at the same time, in each participant."""
    tenant_id = request.tenant_id
    async with deps.database.transaction(tenant_id) as connection:
        status = _render(await tenants.get_tenant(connection, tenant_id))
        counts = await TENANT_TABLES.count_rows(connection, tenant_id)
    status.stored_items.extend(render_stored(counts))
    with impersonate(tenant_id):
        others = await asyncio.gather(*map(_status_of, deps.participants))
    return GetTenantStatusResponse(services=[ServiceTenantStatus(service="session", status=status), *others])


async def _status_of(participant: ParticipantClient) -> ServiceTenantStatus:
    try:
        status = await participant.get_status()
    except MeshError as error:
        return ServiceTenantStatus(service=participant.service, error_reason=reason_number(error.reason))
    return ServiceTenantStatus(service=participant.service, status=status)


def _render(tenant: Tenant | DeletedTenant | None) -> status_pb.TenantStatus:
    if tenant is None:
        return status_pb.TenantStatus(state=status_pb.PARTICIPATION_STATE_UNKNOWN)
    if tenant.deletion is not None:
        return _render_deletion(tenant.deletion)
    return status_pb.TenantStatus(
        state=status_pb.PARTICIPATION_STATE_PREPARED, settings_version=tenant.settings_version
    )


def _render_deletion(deletion: TenantDeletion) -> status_pb.TenantStatus:
    is_over = deletion.end_time is not None
    return status_pb.TenantStatus(
        state=status_pb.PARTICIPATION_STATE_PURGED if is_over else status_pb.PARTICIPATION_STATE_PURGING,
        settings_version=deletion.settings_version,
        purge_begin_time=timestamp_of(deletion.request_time),
        purge_end_time=timestamp_of(deletion.end_time),
    )
