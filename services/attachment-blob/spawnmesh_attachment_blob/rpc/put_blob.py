"""PutBlob. Stores a payload."""

from spawnmesh.attachment_blob.v1 import blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_blob


async def put_blob(request: pb.PutBlobRequest, caller: Caller, deps: Dependencies) -> pb.PutBlobResponse:
    """Store the payload as a set of one file. Durable on return."""
    stored = await deps.stager.stage_blob(caller.tenant_id, parse_blob(request))
    return pb.PutBlobResponse(size_bytes=stored.size_bytes, sha256=stored.sha256)
