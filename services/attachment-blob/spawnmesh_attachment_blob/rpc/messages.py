"""Parse requests into domain values, and render domain values as responses."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2, blob_service_pb2, upload_pb2
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.errors import FieldViolation, MeshError, invalid
from spawnmesh_core.ids import IdKind, is_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_attachment_blob.domain import AttachmentLimits, Encoding, InlineItem
from spawnmesh_attachment_blob.domain.items import FileRef
from spawnmesh_attachment_blob.domain.limits import DEFAULT_MAX_STORED_BYTES, AttachmentPolicy
from spawnmesh_attachment_blob.domain.mime import mime_type_problem
from spawnmesh_attachment_blob.domain.ranges import ByteRange
from spawnmesh_attachment_blob.domain.sets import AttachmentSet, BlobRequest, SetRequest
from spawnmesh_attachment_blob.domain.uploads import (
    Chunk,
    Finish,
    Upload,
    UploadMessage,
    UploadRef,
    UploadSpec,
)

_ENCODING = {attachment_pb2.ENCODING_UTF8: Encoding.UTF8, attachment_pb2.ENCODING_BASE64: Encoding.BASE64}


def reader_session_id(caller: Caller) -> str | None:
    """Return the session of a run, which may see its own sets and those that name it as a reader.

    Returns None if the caller may see all sets of the tenant.
    """
    return caller.session_id if caller.kind is CallerKind.RUN else None


def parse_set_id(set_id: str) -> str:
    """Parse the id of a set. Raises INVALID_REQUEST."""
    return _parse_id(IdKind.ATTACHMENT_SET, "set_id", set_id)


def parse_session_id(session_id: str) -> str:
    """Parse the id of a session. Raises INVALID_REQUEST."""
    return _parse_id(IdKind.SESSION, "session_id", session_id)


def parse_upload_id(upload_id: str) -> str:
    """Parse the id of an upload. Raises INVALID_REQUEST."""
    return _parse_id(IdKind.UPLOAD, "upload_id", upload_id)


def parse_blob_id(blob_id: str) -> str:
    """Parse the id of a payload. Raises INVALID_REQUEST."""
    return _parse_id(IdKind.BLOB, "blob_id", blob_id)


def _parse_id(kind: IdKind, field: str, text: str) -> str:
    if not is_id(kind, text):
        raise invalid(field, f"is not an id of the form {kind}_ and 26 characters")
    return text


def parse_range(request: pb.ReadFileRequest | blob_service_pb2.GetBlobRequest) -> ByteRange:
    """Parse the requested range of a file."""
    return ByteRange(request.offset, request.length)


def parse_policy(limits: pb.AttachmentLimits) -> AttachmentPolicy:
    """Parse a tenant's policy. Fractions of a second are dropped."""
    return AttachmentPolicy(
        AttachmentLimits(
            enabled=limits.enabled,
            max_files=limits.max_file_count,
            max_file_bytes=limits.max_file_bytes,
            max_total_bytes=limits.max_total_bytes,
        ),
        retention_seconds=limits.retention.seconds,
        download_url_seconds=limits.download_url_lifetime.seconds,
        max_stored_bytes=limits.max_stored_bytes or DEFAULT_MAX_STORED_BYTES,
    )


def parse_blob(request: blob_service_pb2.PutBlobRequest) -> BlobRequest:
    """Parse a payload to store. Raises INVALID_REQUEST."""
    problem = mime_type_problem(request.mime_type)
    if problem:
        raise invalid("mime_type", problem)
    session_id = parse_session_id(request.session_id)
    return BlobRequest(parse_blob_id(request.blob_id), session_id, request.data, request.mime_type)


def parse_set(request: pb.StageSetRequest) -> SetRequest:
    """Parse a set to stage. Raises INVALID_REQUEST."""
    uploader = request.uploader_session_id
    return SetRequest(
        parse_set_id(request.set_id),
        parse_session_id(request.session_id),
        _parse_items(request.items),
        [UploadRef(parse_upload_id(upload.upload_id), upload.name) for upload in request.uploads],
        [_parse_reference(index, ref) for index, ref in enumerate(request.references)],
        _parse_id(IdKind.SESSION, "uploader_session_id", uploader) if uploader else "",
        _parse_id(IdKind.RUN, "run_id", request.run_id) if request.run_id else "",
        _parse_readers(request.reader_session_ids),
    )


def _parse_readers(session_ids: Iterable[str]) -> tuple[str, ...]:
    """Parse the readers of a set. They are sorted: a repeat may name them in another order."""
    return tuple(sorted({_parse_id(IdKind.SESSION, "reader_session_ids", one) for one in session_ids}))


def _parse_reference(index: int, ref: attachment_pb2.ReferencedFile) -> FileRef:
    return FileRef(
        _parse_id(IdKind.ATTACHMENT_SET, f"references[{index}].set_id", ref.set_id), ref.name, ref.new_name
    )


def _parse_items(items: Iterable[attachment_pb2.InlineAttachment]) -> list[InlineItem]:
    """Parse items without decoding them. Raises INVALID_REQUEST for invalid MIME types."""
    parsed = [_parse_item(item) for item in items]
    problems = [(index, mime_type_problem(item.mime_type)) for index, item in enumerate(parsed)]
    violations = tuple(
        FieldViolation(f"items[{index}].mime_type", problem) for index, problem in problems if problem
    )
    if violations:
        first = violations[0]
        raise MeshError(Reason.INVALID_REQUEST, f"{first.field}: {first.description}", violations=violations)
    return parsed


def _parse_item(item: attachment_pb2.InlineAttachment) -> InlineItem:
    encoding = _ENCODING.get(item.encoding, Encoding.UNRECOGNIZED)
    if not item.HasField("data"):
        return InlineItem(item.name, item.content, encoding, item.mime_type)
    if item.encoding == attachment_pb2.ENCODING_UNSPECIFIED:
        encoding = Encoding.NONE
    return InlineItem(item.name, item.data, encoding, item.mime_type)


async def parse_upload(
    requests: AsyncIterator[pb.UploadFileRequest],
) -> AsyncGenerator[UploadMessage, None]:
    """Parse the messages of an upload stream. Raises INVALID_REQUEST."""
    async for request in requests:
        match request.WhichOneof("message"):
            case "spec":
                yield _parse_spec(request.spec)
            case "chunk":
                yield Chunk(request.chunk.offset, request.chunk.data, request.chunk.crc32c)
            case _:
                yield Finish()


def _parse_spec(spec: upload_pb2.UploadSpec) -> UploadSpec:
    problem = mime_type_problem(spec.mime_type)
    if problem:
        raise invalid("spec.mime_type", problem)
    return UploadSpec(
        parse_upload_id(spec.upload_id), spec.name, spec.size_bytes, spec.sha256, spec.mime_type
    )


def render_set(attachment_set: AttachmentSet) -> attachment_pb2.AttachmentSet:
    """Render the set with its manifest."""
    return attachment_pb2.AttachmentSet(
        set_id=attachment_set.set_id,
        session_id=attachment_set.session_id,
        state=attachment_pb2.SetState.Value(f"SET_STATE_{attachment_set.state}"),
        files=[
            attachment_pb2.AttachmentFile(
                name=file.name, size_bytes=file.size_bytes, sha256=file.sha256, mime_type=file.mime_type
            )
            for file in attachment_set.files
        ],
        total_bytes=sum(file.size_bytes for file in attachment_set.files),
        create_time=timestamp_of(attachment_set.create_time),
        run_id=attachment_set.run_id,
    )


def render_upload(upload: Upload) -> upload_pb2.Upload:
    """Render an upload that is OPEN or COMPLETE. The contract has no state ABORTING."""
    return upload_pb2.Upload(
        upload_id=upload.spec.upload_id,
        name=upload.spec.name,
        size_bytes=upload.spec.size_bytes,
        sha256=upload.spec.sha256,
        mime_type=upload.spec.mime_type,
        state=upload_pb2.UploadState.Value(f"UPLOAD_STATE_{upload.state}"),
        durable_bytes=upload.durable_bytes,
        create_time=timestamp_of(upload.create_time),
        expire_time=timestamp_of(upload.expire_time),
    )
