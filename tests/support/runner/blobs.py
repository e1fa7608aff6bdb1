"""The attachment-blob service, as far as a runner calls it."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2_grpc as blob_grpc
from spawnmesh.attachment_blob.v1 import attachment_pb2, upload_pb2

if TYPE_CHECKING:
    from tests.support.runner.scripted_mesh import ScriptedMesh


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

    async def UploadFile(
        self, requests: AsyncIterator[blob_pb.UploadFileRequest], context: Any
    ) -> blob_pb.UploadFileResponse:
        """Keep the file of a stream; the spec alone finds what is there."""
        self.mesh.refuse_if_scripted("UploadFile")
        outputs = self.mesh.outputs
        spec = (await anext(requests)).spec
        upload = upload_pb2.Upload(upload_id=spec.upload_id, state=upload_pb2.UPLOAD_STATE_OPEN)
        data = bytearray()
        async for request in requests:
            data += request.chunk.data
            if request.HasField("finish"):
                outputs.uploads[spec.upload_id] = spec.name, bytes(data)
        if spec.upload_id in outputs.uploads:
            upload.state = upload_pb2.UPLOAD_STATE_COMPLETE
        else:
            outputs.on_upload()
            if outputs.hold_upload is not None:
                await outputs.hold_upload.wait()
        return blob_pb.UploadFileResponse(upload=upload)
