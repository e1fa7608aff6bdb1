"""The files of a mesh in memory: uploads, attachment sets and output sets."""

from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as rpc
from spawnmesh.attachment_blob.v1.attachment_pb2 import (
    ENCODING_BASE64,
    SET_STATE_RELEASED,
    AttachmentSet,
    InlineAttachment,
    ReferencedFile,
)
from spawnmesh.attachment_blob.v1.upload_pb2 import UPLOAD_STATE_COMPLETE, Upload
from spawnmesh.session.v1 import output_pb2, session_pb2
from spawnmesh.session.v1.session_service_pb2 import SpawnSessionRequest
from spawnmesh_core.errors import MeshError, NotFound, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachments import Attachable, Attachment, mime_type_of
from spawnmesh_client.fake_records import FakeFile, SessionRecord, file_of, now
from spawnmesh_client.fake_refusals import spawn_undone


class FakeFiles:
    """Answer the calls about files. `look` returns the record of a session after its queued run."""

    def __init__(self, look: Callable[[str], SessionRecord]) -> None:
        self.records: dict[str, SessionRecord] = {}
        self._look = look
        self._uploads: dict[str, tuple[Upload, bytes]] = {}

    async def UploadFile(self, requests: AsyncIterator[Any]) -> rpc.UploadFileResponse:
        spec, data, finished = (await anext(requests)).spec, bytearray(), False
        async for request in requests:
            data += request.chunk.data
            finished = finished or request.HasField("finish")
        upload = Upload(
            upload_id=spec.upload_id, name=spec.name, size_bytes=spec.size_bytes, sha256=spec.sha256,
            mime_type=spec.mime_type, create_time=now(),
        )  # fmt: skip
        known, _ = self._uploads.get(spec.upload_id, (upload, b""))
        if finished and known.state != UPLOAD_STATE_COMPLETE:
            known.state, known.durable_bytes = UPLOAD_STATE_COMPLETE, len(data)
            self._uploads[spec.upload_id] = known, bytes(data)
        return rpc.UploadFileResponse(upload=known)

    async def ListSets(self, request: rpc.ListSetsRequest) -> rpc.ListSetsResponse:
        sets = [
            one
            for session_id in reversed(self.records)
            if request.session_id in ("", session_id)
            for one in reversed(self._look(session_id).sets)
        ]
        return rpc.ListSetsResponse(sets=[message for message, _ in sets])

    async def GetSet(self, request: rpc.GetSetRequest) -> rpc.GetSetResponse:
        return rpc.GetSetResponse(set=self._set(request.set_id)[0])

    async def ReadFile(self, request: rpc.ReadFileRequest) -> AsyncIterator[Any]:
        message, files = self._set(request.set_id)
        _require_readable(message)
        yield rpc.ReadFileResponse(data=_named(files, request.set_id, request.name).data[request.offset :])

    async def ListOutputSets(
        self, request: output_pb2.ListOutputSetsRequest
    ) -> output_pb2.ListOutputSetsResponse:
        found = [
            output
            for output, _ in self._look(request.session_id).outputs
            if request.run_id in ("", output.run_id) and request.request_id in ("", output.request_id)
        ]
        return output_pb2.ListOutputSetsResponse(output_sets=found)

    def attach(self, request: SpawnSessionRequest, session: session_pb2.Session) -> list[FakeFile]:
        """Return the files of the spawn, and write their receipt. Raises their refusals."""
        found = [FakeFile(one.name, _inline_bytes(one), one.mime_type) for one in request.attachments]
        for wanted in request.uploads:
            upload, data = self._uploads[wanted.upload_id]
            found.append(FakeFile(wanted.name or upload.name, data, upload.mime_type))
        for reference in request.references:
            try:
                found.append(self._referenced(reference))
            except MeshError as error:
                error.facts["index"] = str(len(found))
                raise (spawn_undone(error) if isinstance(error, NotFound) else error) from None
        require_distinct(found)
        if found:
            receipt = session.receipt
            receipt.set_id = new_id(IdKind.ATTACHMENT_SET)
            receipt.count, receipt.total_bytes = len(found), sum(len(one.data) for one in found)
            receipt.files.extend(map(file_of, found))
            receipt.rel_dir = f".spawnmesh/attachments/{receipt.set_id}"
            receipt.mount_path = request.attach_as.mount_path
        return found

    def published(self, request: output_pb2.PublishFilesRequest) -> list[FakeFile]:
        """Return the files that a run publishes. Raises their refusals."""
        found = [FakeFile(one.name, _inline_bytes(one), one.mime_type) for one in request.files]
        for wanted in request.uploads:
            upload, data = self._uploads[wanted.upload_id]
            found.append(FakeFile(wanted.name or upload.name, data, upload.mime_type))
        require_distinct(found)
        return found

    def _referenced(self, wanted: ReferencedFile) -> FakeFile:
        message, files = self._set(wanted.set_id)
        _require_readable(message)
        file = _named(files, wanted.set_id, wanted.name)
        return FakeFile(wanted.new_name or file.name, file.data, file.mime_type)

    def _set(self, set_id: str) -> tuple[AttachmentSet, Sequence[FakeFile]]:
        for record in self.records.values():
            for message, files in record.sets:
                if message.set_id == set_id:
                    return message, files
        raise not_found("attachment set", set_id)


def read_file(file: Attachable) -> FakeFile:
    """Return the file with its bytes. Raises OSError for a path that cannot be read."""
    one = file if isinstance(file, Attachment) else Attachment(Path(file).name, Path(file))
    if isinstance(one.data, bytes):
        data = one.data
    else:
        data = one.data.read_bytes() if isinstance(one.data, Path) else one.data.read()
    return FakeFile(one.name, data, mime_type_of(one))


def require_distinct(files: Sequence[FakeFile]) -> None:
    """Raise ATTACHMENTS_DUPLICATE_NAME if two files have the same name."""
    names: list[str] = []
    for index, file in enumerate(files):
        if file.name in names:
            raise MeshError(
                Reason.ATTACHMENTS_DUPLICATE_NAME,
                "two files have the same name",
                facts={"index": index, "first_index": names.index(file.name)},
            )
        names.append(file.name)


def _inline_bytes(file: InlineAttachment) -> bytes:
    """Return the bytes of an inline file. Raises InvalidRequest for malformed base64."""
    if file.HasField("data"):
        return file.data
    if file.encoding != ENCODING_BASE64:
        return file.content.encode()
    try:
        return b64decode(file.content, validate=True)
    except ValueError:
        raise MeshError(
            Reason.ATTACHMENTS_INVALID_BASE64_OR_TOO_LARGE,
            f"{file.name} is no base64",
            facts={"file": file.name},
        ) from None


def _require_readable(message: AttachmentSet) -> None:
    if message.state == SET_STATE_RELEASED:
        raise MeshError(
            Reason.ATTACHMENT_SET_STATE,
            f"attachment set {message.set_id} is RELEASED",
            facts={"set_id": message.set_id, "state": "RELEASED"},
        )


def _named(files: Sequence[FakeFile], set_id: str, name: str) -> FakeFile:
    for file in files:
        if file.name == name:
            return file
    raise not_found("file of that name in attachment set", set_id)
