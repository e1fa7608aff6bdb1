"""PrepareTenant. Prepares the tenant: its bucket exists on return, and the limits hold."""

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.domain.errors import being_purged
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_policy
from spawnmesh_attachment_blob.store import tenants


async def prepare_tenant(
    request: pb.PrepareTenantRequest, caller: Caller, deps: Dependencies
) -> pb.PrepareTenantResponse:
    """Create the tenant's bucket and store its policy, unless a newer version is stored.

    A purge of an earlier tenant with this id ends once nothing is left of that one. Raises
    S3Failed, and CONFLICT while the tenant is being purged.
    """
    tenant_id, version, policy = caller.tenant_id, request.settings_version, parse_policy(request.limits)
    async with deps.database.transaction(tenant_id) as connection:
        found = await tenants.get_tenant(connection, tenant_id)
    if found is not None and found.purging and not 0 < found.purged_version < version:
        raise being_purged()
    await deps.calls.call(deps.buckets.make_bucket, tenant_id)
    async with deps.database.transaction(tenant_id) as connection:
        await tenants.lock_tenant(connection, tenant_id)
        await tenants.put_tenant(connection, tenant_id, version, policy)
        tenant = await tenants.get_tenant(connection, tenant_id)
        if tenant is None or tenant.purging:
            # A purge began in the meantime. It may have removed the bucket before make_bucket.
            await deps.calls.call(deps.buckets.remove_bucket, tenant_id)
            raise being_purged()
    if found is None or found.purging:
        # A late purge may have removed the bucket. From now on it removes nothing.
        await deps.calls.call(deps.buckets.make_bucket, tenant_id)
    return pb.PrepareTenantResponse(settings_version=tenant.settings_version)
