"""PrepareTenant: store a tenant's settings, and allow rows for it."""

from spawnmesh.hook.v1 import tenant_hook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.errors import PurgeInProgress, SettingsOfPurgedTenant
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.store import tenants


async def prepare_tenant(
    request: pb.PrepareTenantRequest, caller: Caller, deps: Dependencies
) -> pb.PrepareTenantResponse:
    """Store the settings unless they are older, and return the version that holds.

    Version 0 stores no settings. A purge of the tenant before this one is over and is forgotten,
    since a tenant is created anew only after its purge. Raises PurgeInProgress, and
    SettingsOfPurgedTenant.
    """
    tenant_id, version = caller.tenant_id, request.settings_version
    async with deps.database.transaction(tenant_id) as connection:
        await tenants.block_writes(connection, tenant_id)
        await tenants.delete_older_purge(connection, tenant_id, version)
        is_purge_done = await tenants.is_purge_done(connection, tenant_id)
        if is_purge_done is not None:
            raise SettingsOfPurgedTenant if is_purge_done else PurgeInProgress
        if version > 0:
            await tenants.put_settings(
                connection, tenant_id, version, mask_secrets=request.settings.mask_secrets
            )
        current = await tenants.get_settings_version(connection, tenant_id) or 0
    return pb.PrepareTenantResponse(settings_version=current)
