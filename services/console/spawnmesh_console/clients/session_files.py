"""The bytes of files that were attached to sessions, or published by their runs."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import ReadFileRequest
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh_client.client import Mesh

_READ_SECONDS = 3600.0


async def file_pieces(mesh: Mesh, set_id: str, name: str) -> AsyncGenerator[bytes, None]:
    """Yield the file, piece by piece. Raises NotFound, and other refusals, also in between."""
    peer = mesh.wire.service("attachment-blob")
    request = ReadFileRequest(set_id=set_id, name=name)
    stub = AttachmentBlobServiceStub(peer.channel)
    async with aclosing(peer.stream(stub.ReadFile, request, timeout_seconds=_READ_SECONDS)) as pieces:
        async for piece in pieces:
            yield piece.data
