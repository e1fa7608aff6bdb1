"""The gRPC servicers of AttachmentBlobService and BlobService.

Each method calls its RPC's module.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from google.longrunning.operations_pb2 import Operation
from grpc import aio
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceServicer
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceServicer
from spawnmesh_postgres.long_running.operations import Operations
from spawnmesh_runtime.caller import current_caller

from spawnmesh_attachment_blob.rpc.attach_set import attach_set
from spawnmesh_attachment_blob.rpc.collect_garbage import collect_garbage
from spawnmesh_attachment_blob.rpc.create_download_url import create_download_url
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.get_blob import get_blob
from spawnmesh_attachment_blob.rpc.get_set import get_set
from spawnmesh_attachment_blob.rpc.get_upload import get_upload
from spawnmesh_attachment_blob.rpc.list_sets import list_sets
from spawnmesh_attachment_blob.rpc.put_blob import put_blob
from spawnmesh_attachment_blob.rpc.read_file import read_file
from spawnmesh_attachment_blob.rpc.release_blob import release_blob
from spawnmesh_attachment_blob.rpc.release_set import release_set
from spawnmesh_attachment_blob.rpc.stage_set import stage_set
from spawnmesh_attachment_blob.rpc.upload_file import upload_file

Context = aio.ServicerContext[Any, Any]


class AttachmentBlobServicer(AttachmentBlobServiceServicer):
    """The servicer of AttachmentBlobService."""

    def __init__(self, deps: Dependencies, operations: Operations) -> None:
        self._deps = deps
        self._operations = operations

    async def UploadFile(
        self, request_iterator: AsyncIterator[pb.UploadFileRequest], context: Context
    ) -> pb.UploadFileResponse:
        return await upload_file(request_iterator, current_caller(), self._deps)

    async def GetUpload(self, request: pb.GetUploadRequest, context: Context) -> pb.GetUploadResponse:
        return await get_upload(request, current_caller(), self._deps)

    async def StageSet(self, request: pb.StageSetRequest, context: Context) -> pb.StageSetResponse:
        return await stage_set(request, current_caller(), self._deps)

    async def AttachSet(self, request: pb.AttachSetRequest, context: Context) -> pb.AttachSetResponse:
        return await attach_set(request, current_caller(), self._deps)

    async def ReleaseSet(self, request: pb.ReleaseSetRequest, context: Context) -> pb.ReleaseSetResponse:
        return await release_set(request, current_caller(), self._deps)

    async def GetSet(self, request: pb.GetSetRequest, context: Context) -> pb.GetSetResponse:
        return await get_set(request, current_caller(), self._deps)

    async def ListSets(self, request: pb.ListSetsRequest, context: Context) -> pb.ListSetsResponse:
        return await list_sets(request, current_caller(), self._deps)

    async def ReadFile(
        self, request: pb.ReadFileRequest, context: Context
    ) -> AsyncIterator[pb.ReadFileResponse]:
        async with aclosing(read_file(request, current_caller(), self._deps)) as responses:
            async for response in responses:
                yield response

    async def CreateDownloadUrl(
        self, request: pb.CreateDownloadUrlRequest, context: Context
    ) -> pb.CreateDownloadUrlResponse:
        return await create_download_url(request, current_caller(), self._deps)

    async def CollectGarbage(self, request: pb.CollectGarbageRequest, context: Context) -> Operation:
        return await collect_garbage(request, current_caller(), self._deps, self._operations)


class BlobServicer(BlobServiceServicer):
    """The servicer of BlobService."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def PutBlob(self, request: blob_pb.PutBlobRequest, context: Context) -> blob_pb.PutBlobResponse:
        return await put_blob(request, current_caller(), self._deps)

    async def GetBlob(
        self, request: blob_pb.GetBlobRequest, context: Context
    ) -> AsyncIterator[blob_pb.GetBlobResponse]:
        async with aclosing(get_blob(request, current_caller(), self._deps)) as responses:
            async for response in responses:
                yield response

    async def ReleaseBlob(
        self, request: blob_pb.ReleaseBlobRequest, context: Context
    ) -> blob_pb.ReleaseBlobResponse:
        return await release_blob(request, current_caller(), self._deps)
