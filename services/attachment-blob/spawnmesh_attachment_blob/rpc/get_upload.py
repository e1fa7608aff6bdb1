"""GetUpload. Returns the progress of an upload."""

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.domain.uploads import UploadKey, require_upload
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_upload_id, render_upload
from spawnmesh_attachment_blob.store import uploads


async def get_upload(
    request: pb.GetUploadRequest, caller: Caller, deps: Dependencies
) -> pb.GetUploadResponse:
    """Return the caller's upload. Raises NOT_FOUND."""
    key = UploadKey(caller.session_id, parse_upload_id(request.upload_id))
    async with deps.database.transaction(caller.tenant_id) as connection:
        found = require_upload(await uploads.get_upload(connection, caller.tenant_id, key), key)
    return pb.GetUploadResponse(upload=render_upload(found))
