"""CreateDownloadUrl.

Returns a URL from which anyone who has it can fetch the file for a short time, without this
service.
"""

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.domain.errors import stored_hash_differs, urls_disabled
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_set_id
from spawnmesh_attachment_blob.store import tenants


async def create_download_url(
    request: pb.CreateDownloadUrlRequest, caller: Caller, deps: Dependencies
) -> pb.CreateDownloadUrlResponse:
    """Return a URL for the file, and when it expires.

    Raises DOWNLOAD_URLS_DISABLED, NOT_FOUND, ATTACHMENT_SET_STATE, S3Failed, and
    STORED_HASH_DIFFERS if the object is missing.
    """
    tenant_id, set_id = caller.tenant_id, parse_set_id(request.set_id)
    async with deps.database.transaction(tenant_id) as connection:
        tenant = await tenants.get_tenant(connection, tenant_id)
    lifetime_seconds = tenant.policy.download_url_seconds if tenant else 0
    if lifetime_seconds == 0:
        raise urls_disabled()
    file, key = await deps.reader.find(tenant_id, set_id, request.name, None)
    if await deps.objects.size_of(tenant_id, key) is None:
        # It may have been released in the meantime; then this raises.
        await deps.reader.find(tenant_id, set_id, request.name, None)
        raise stored_hash_differs(file.sha256)
    url, expire_time = await deps.objects.download_url(tenant_id, key, request.name, lifetime_seconds)
    return pb.CreateDownloadUrlResponse(url=url, expire_time=timestamp_of(expire_time))
