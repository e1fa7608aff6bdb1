"""ReleaseBlob.

Releases a payload under the rules of ReleaseSet: bytes that nothing else refers to are deleted
before the response.
"""

from spawnmesh.attachment_blob.v1 import blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_blob_id


async def release_blob(
    request: pb.ReleaseBlobRequest, caller: Caller, deps: Dependencies
) -> pb.ReleaseBlobResponse:
    """Release the payload and delete its object if it has no other reference. Raises S3Failed."""
    count = await deps.releaser.release_set(caller.tenant_id, parse_blob_id(request.blob_id))
    return pb.ReleaseBlobResponse(deleted_object=count > 0)
