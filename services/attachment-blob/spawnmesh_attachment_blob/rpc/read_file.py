"""ReadFile. Streams the bytes of one file, or of a range of it, in order."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_range, parse_set_id, reader_session_id


async def read_file(
    request: pb.ReadFileRequest, caller: Caller, deps: Dependencies
) -> AsyncGenerator[pb.ReadFileResponse, None]:
    """Yield a range of the file in pieces. The errors are those of `FileReader.read`."""
    set_id, requested = parse_set_id(request.set_id), parse_range(request)
    reading = deps.reader.read(caller.tenant_id, set_id, request.name, reader_session_id(caller), requested)
    async with aclosing(reading) as pieces:
        async for piece in pieces:
            yield pb.ReadFileResponse(data=piece)
