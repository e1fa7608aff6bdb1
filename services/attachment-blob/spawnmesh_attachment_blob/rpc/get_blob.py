"""GetBlob. Streams the bytes of a payload, or a range of them, under the rules of ReadFile."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh.attachment_blob.v1 import blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.domain.sets import BLOB_NAME
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_blob_id, parse_range


async def get_blob(
    request: pb.GetBlobRequest, caller: Caller, deps: Dependencies
) -> AsyncGenerator[pb.GetBlobResponse, None]:
    """Yield a range of the payload in pieces. The errors are those of `FileReader.read`."""
    blob_id, requested = parse_blob_id(request.blob_id), parse_range(request)
    async with aclosing(deps.reader.read(caller.tenant_id, blob_id, BLOB_NAME, None, requested)) as pieces:
        async for piece in pieces:
            yield pb.GetBlobResponse(data=piece)
