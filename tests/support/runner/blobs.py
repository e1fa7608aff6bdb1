"""The attachment-blob service, as far as a runner calls it."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2_grpc as blob_grpc
from spawnmesh.attachment_blob.v1 import attachment_pb2

if TYPE_CHECKING:
    from tests.support.runner.fixtures import ScriptedMesh


class ScriptedBlobs(blob_grpc.AttachmentBlobServiceServicer):
    """The files of the one set of the session."""

    def __init__(self, mesh: "ScriptedMesh") -> None:
        self.mesh = mesh

    async def GetSet(self, request: blob_pb.GetSetRequest, context: Any) -> blob_pb.GetSetResponse:
        attached = attachment_pb2.AttachmentSet(
            set_id=request.set_id, state=attachment_pb2.SET_STATE_ATTACHED, files=self.mesh.attachment_files()
        )
        return blob_pb.GetSetResponse(set=attached)

    async def ReadFile(
        self, request: blob_pb.ReadFileRequest, context: Any
    ) -> AsyncIterator[blob_pb.ReadFileResponse]:
        self.mesh.on_read_file()
        data = self.mesh.files[request.name]
        half = len(data) // 2
        yield blob_pb.ReadFileResponse(data=data[:half])
        if self.mesh.refusals.get("ReadFile"):
            refusal = self.mesh.refusals["ReadFile"].popleft()
            raise refusal
        yield blob_pb.ReadFileResponse(data=data[half:])
