"""PrepareTenant: store a tenant's settings, and allow rows for it."""

from spawnmesh.hook.v1 import tenant_hook_service_pb2 as pb
from spawnmesh_postgres import tenant_purges
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.store import tenants


async def prepare_tenant(
    request: pb.PrepareTenantRequest, caller: Caller, deps: Dependencies
) -> pb.PrepareTenantResponse:
    """Store the settings unless they are older, and return the version that holds.

    Version 0 stores no settings. A purge of the tenant before this one is over and is forgotten,
    since a tenant is created anew only after its purge. Raises CONFLICT while the tenant is being
    purged, and for settings of a tenant that was purged.
    """
    tenant_id, version = caller.tenant_id, request.settings_version
    async with deps.database.transaction(tenant_id) as connection:
        await tenant_purges.end_earlier_purge(connection, tenant_id, version)
        if version > 0:
            await tenants.put_settings(
                connection, tenant_id, version, mask_secrets=request.settings.mask_secrets
            )
        current = await tenants.get_settings_version(connection, tenant_id) or 0
    return pb.PrepareTenantResponse(settings_version=current)
