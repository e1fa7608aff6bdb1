"""ReleaseSet.

Releases a set in any state, and deletes its bytes before the response if nothing else refers to
them.
"""

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_set_id


async def release_set(
    request: pb.ReleaseSetRequest, caller: Caller, deps: Dependencies
) -> pb.ReleaseSetResponse:
    """Release the set and delete the objects that have no other reference. Raises S3Failed."""
    count = await deps.releaser.release_set(caller.tenant_id, parse_set_id(request.set_id))
    return pb.ReleaseSetResponse(deleted_object_count=count)
