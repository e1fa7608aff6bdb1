"""From requests to values."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2, blob_service_pb2, upload_pb2
from spawnmesh_core.errors import FieldViolation, MeshError, invalid
from spawnmesh_core.ids import IdKind, is_id
from spawnmesh_core.reasons import Reason

from spawnmesh_attachment_blob.domain import AttachmentLimits, Encoding, InlineItem
from spawnmesh_attachment_blob.domain.limits import TenantPolicy
from spawnmesh_attachment_blob.domain.mime import mime_type_problem
from spawnmesh_attachment_blob.domain.ranges import ByteRange
from spawnmesh_attachment_blob.domain.uploads import Chunk, Finish, UploadRef, UploadSpec
from spawnmesh_attachment_blob.staging import BlobRequest, SetRequest

_ENCODING = {attachment_pb2.ENCODING_UTF8: Encoding.UTF8, attachment_pb2.ENCODING_BASE64: Encoding.BASE64}


def parse_set_id(set_id: str) -> str:
    """The id of a set. Raises INVALID_REQUEST for what cannot be one."""
    return _parse_id(IdKind.ATTACHMENT_SET, "set_id", set_id)


def parse_session_id(session_id: str) -> str:
    """The id of a session. Raises INVALID_REQUEST for what cannot be one."""
    return _parse_id(IdKind.SESSION, "session_id", session_id)


def parse_upload_id(upload_id: str) -> str:
    """The id of an upload. Raises INVALID_REQUEST for what cannot be one."""
    return _parse_id(IdKind.UPLOAD, "upload_id", upload_id)


def parse_page_token(page_token: str) -> str:
    """The id of the last set of the page before, empty for the first page. Raises INVALID_REQUEST for what no page gave."""
    return _parse_id(IdKind.ATTACHMENT_SET, "page_token", page_token) if page_token else ""


def parse_blob_id(blob_id: str) -> str:
    """The id of a payload. Raises INVALID_REQUEST for what cannot be one."""
    return _parse_id(IdKind.BLOB, "blob_id", blob_id)


def parse_blob(request: blob_service_pb2.PutBlobRequest) -> BlobRequest:
    """A payload that is to be kept. Raises INVALID_REQUEST."""
    problem = mime_type_problem(request.mime_type)
    if problem:
        raise invalid("mime_type", problem)
    session_id = parse_session_id(request.session_id)
    return BlobRequest(parse_blob_id(request.blob_id), session_id, request.data, request.mime_type)


def parse_range(request: pb.ReadFileRequest | blob_service_pb2.GetBlobRequest) -> ByteRange:
    """Which bytes of a file are asked for."""
    return ByteRange(request.offset, request.length)


def _parse_id(kind: IdKind, field: str, text: str) -> str:
    if not is_id(kind, text):
        raise invalid(field, f"is not an id of the form {kind}_ and 26 characters")
    return text


def parse_policy(limits: pb.AttachmentLimits) -> TenantPolicy:
    """A tenant's policy. Parts of a second are left out."""
    return TenantPolicy(
        AttachmentLimits(
            enabled=limits.enabled,
            max_files=limits.max_file_count,
            max_file_bytes=limits.max_file_bytes,
            max_total_bytes=limits.max_total_bytes,
        ),
        retention_seconds=limits.retention.seconds,
        download_url_seconds=limits.download_url_lifetime.seconds,
    )


def parse_set(request: pb.StageSetRequest) -> SetRequest:
    """A set that is asked for. Raises INVALID_REQUEST."""
    uploader = request.uploader_session_id
    return SetRequest(
        parse_set_id(request.set_id),
        parse_session_id(request.session_id),
        parse_items(request.items),
        [UploadRef(parse_upload_id(upload.upload_id), upload.name) for upload in request.uploads],
        _parse_id(IdKind.SESSION, "uploader_session_id", uploader) if uploader else "",
    )


async def parse_upload(
    requests: AsyncIterator[pb.UploadFileRequest],
) -> AsyncGenerator[UploadSpec | Chunk | Finish, None]:
    """The messages of an upload's stream. Raises INVALID_REQUEST."""
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
    return UploadSpec(parse_upload_id(spec.upload_id), spec.name, spec.size_bytes, spec.sha256, spec.mime_type)


def parse_items(items: Iterable[attachment_pb2.InlineAttachment]) -> list[InlineItem]:
    """The items as they came. Raises INVALID_REQUEST for MIME types that are too long or hold control characters."""
    parsed = [
        InlineItem(item.name, item.content, _ENCODING.get(item.encoding, Encoding.UNRECOGNIZED), item.mime_type)
        for item in items
    ]
    problems = [(index, mime_type_problem(item.mime_type)) for index, item in enumerate(parsed)]
    violations = tuple(FieldViolation(f"items[{index}].mime_type", problem) for index, problem in problems if problem)
    if violations:
        first = violations[0]
        raise MeshError(Reason.INVALID_REQUEST, f"{first.field}: {first.description}", violations=violations)
    return parsed
