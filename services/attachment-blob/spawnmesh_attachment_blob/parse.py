"""From requests to values."""

from collections.abc import Iterable

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh_core.errors import FieldViolation, MeshError, invalid
from spawnmesh_core.ids import IdKind, is_id
from spawnmesh_core.reasons import Reason

from spawnmesh_attachment_blob.domain import AttachmentLimits, Encoding, InlineItem
from spawnmesh_attachment_blob.domain.mime import mime_type_problem

_ENCODING = {attachment_pb2.ENCODING_UTF8: Encoding.UTF8, attachment_pb2.ENCODING_BASE64: Encoding.BASE64}


def parse_set_id(set_id: str) -> str:
    """The id of a set. Raises INVALID_REQUEST for what cannot be one."""
    return _parse_id(IdKind.ATTACHMENT_SET, "set_id", set_id)


def parse_session_id(session_id: str) -> str:
    """The id of a session. Raises INVALID_REQUEST for what cannot be one."""
    return _parse_id(IdKind.SESSION, "session_id", session_id)


def _parse_id(kind: IdKind, field: str, text: str) -> str:
    if not is_id(kind, text):
        raise invalid(field, f"is not an id of the form {kind}_ and 26 characters")
    return text


def parse_limits(limits: pb.AttachmentLimits) -> AttachmentLimits:
    """A tenant's limits."""
    return AttachmentLimits(
        enabled=limits.enabled,
        max_files=limits.max_file_count,
        max_file_bytes=limits.max_file_bytes,
        max_total_bytes=limits.max_total_bytes,
    )


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
