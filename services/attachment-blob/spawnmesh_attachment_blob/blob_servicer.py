"""BlobService over gRPC: a payload is a set of one file, of a kind that nobody is shown."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from spawnmesh.attachment_blob.v1 import blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceServicer
from spawnmesh_runtime.caller import current_caller

from spawnmesh_attachment_blob.domain.sets import BLOB_NAME
from spawnmesh_attachment_blob.parse import parse_blob, parse_blob_id, parse_range
from spawnmesh_attachment_blob.reading import Reading
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.servicer import Context
from spawnmesh_attachment_blob.staging import Staging


class BlobServicer(BlobServiceServicer):
    """One method for each RPC; the tenant is the caller's."""

    def __init__(self, staging: Staging, reading: Reading, removal: Removal) -> None:
        self._staging = staging
        self._reading = reading
        self._removal = removal

    async def PutBlob(self, request: pb.PutBlobRequest, context: Context) -> pb.PutBlobResponse:
        kept = await self._staging.keep(current_caller().tenant_id, parse_blob(request))
        return pb.PutBlobResponse(size_bytes=kept.size_bytes, sha256=kept.sha256)

    async def GetBlob(self, request: pb.GetBlobRequest, context: Context) -> AsyncIterator[pb.GetBlobResponse]:
        tenant_id, blob_id = current_caller().tenant_id, parse_blob_id(request.blob_id)
        reading = self._reading.read(tenant_id, blob_id, BLOB_NAME, None, parse_range(request))
        async with aclosing(reading) as pieces:
            async for piece in pieces:
                yield pb.GetBlobResponse(data=piece)

    async def ReleaseBlob(self, request: pb.ReleaseBlobRequest, context: Context) -> pb.ReleaseBlobResponse:
        count = await self._removal.release(current_caller().tenant_id, parse_blob_id(request.blob_id))
        return pb.ReleaseBlobResponse(deleted_object=count > 0)
