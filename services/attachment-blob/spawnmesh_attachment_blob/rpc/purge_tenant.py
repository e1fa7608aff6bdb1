"""PurgeTenant. Empties and removes the tenant's bucket, then removes all its rows."""

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.rpc.dependencies import Dependencies


async def purge_tenant(
    request: pb.PurgeTenantRequest, caller: Caller, deps: Dependencies
) -> pb.PurgeTenantResponse:
    """Remove some pages of the tenant's objects and rows. Raises S3Failed."""
    result = await deps.purger.purge(caller.tenant_id, request.settings_version)
    return pb.PurgeTenantResponse(
        done=result.done, deleted_object_count=result.objects, deleted_row_count=result.rows
    )
