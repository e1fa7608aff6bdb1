"""Validate a list of attachments: all of them pass, or the list is refused."""

import hashlib
from collections.abc import Sequence

from spawnmesh_attachment_blob.domain.base64_strict import Base64Refused, decode_strict
from spawnmesh_attachment_blob.domain.items import Encoding, InlineItem, StoredFile, ValidFile
from spawnmesh_attachment_blob.domain.limits import AttachmentLimits
from spawnmesh_attachment_blob.domain.names import duplicate_key, name_problem
from spawnmesh_attachment_blob.domain.refusal import AttachmentReason, AttachmentRefused
from spawnmesh_attachment_blob.domain.utf8_size import utf8_size


def validate(
    items: Sequence[InlineItem], limits: AttachmentLimits, stored: Sequence[StoredFile] = ()
) -> list[ValidFile]:
    """Decode `items` and return their files in order. An empty list passes under all limits.

    `stored` are the set's other files, whose bytes are stored already. They are checked after the
    items, under the same limits.
    Raises AttachmentRefused for the first problem in this order: attachments enabled, number of
    files, then for each file its name, a duplicate name, its encoding and size, and the total so
    far.
    """
    count = len(items) + len(stored)
    if not count:
        return []
    if not limits.enabled:
        raise AttachmentRefused(AttachmentReason.DISABLED, {})
    if count > limits.max_files:
        facts = {"count": count, "limit": limits.max_files}
        raise AttachmentRefused(AttachmentReason.FILE_COUNT_EXCEEDED, facts)
    files: list[ValidFile] = []
    index_by_key: dict[str, int] = {}
    total_bytes = 0
    for index, item in enumerate(items):
        _check_name(index, item.name, index_by_key)
        data = _decode(index, item, limits.max_file_bytes)
        total_bytes += len(data)
        _check_total(index, total_bytes, limits)
        files.append(ValidFile(item.name, data, hashlib.sha256(data).hexdigest(), item.mime_type))
    for index, file in enumerate(stored, start=len(items)):
        _check_name(index, file.name, index_by_key)
        if file.size_bytes > limits.max_file_bytes:
            facts = {"index": index, "limit_bytes": limits.max_file_bytes}
            raise AttachmentRefused(AttachmentReason.FILE_BYTES_EXCEEDED, facts)
        total_bytes += file.size_bytes
        _check_total(index, total_bytes, limits)
    return files


def _check_total(index: int, total_bytes: int, limits: AttachmentLimits) -> None:
    if total_bytes > limits.max_total_bytes:
        facts = {"index": index, "limit_bytes": limits.max_total_bytes}
        raise AttachmentRefused(AttachmentReason.TOTAL_BYTES_EXCEEDED, facts)


def _check_name(index: int, name: str, index_by_key: dict[str, int]) -> None:
    problem = name_problem(name)
    if problem is not None:
        raise AttachmentRefused(AttachmentReason.INVALID_NAME, {"index": index, "rule": problem.value})
    first = index_by_key.setdefault(duplicate_key(name), index)
    if first != index:
        raise AttachmentRefused(AttachmentReason.DUPLICATE_NAME, {"index": index, "first_index": first})


def _decode(index: int, item: InlineItem, max_bytes: int) -> bytes:
    if isinstance(item.content, bytes):
        if item.encoding is not Encoding.NONE:
            facts: dict[str, int | str] = {"index": index, "problem": "encoding_of_bytes"}
            raise AttachmentRefused(AttachmentReason.INVALID_ENCODING, facts)
        if len(item.content) > max_bytes:
            facts = {"index": index, "limit_bytes": max_bytes}
            raise AttachmentRefused(AttachmentReason.FILE_BYTES_EXCEEDED, facts)
        return item.content
    if item.encoding is Encoding.UTF8:
        return _encode_utf8(index, item.content, max_bytes)
    if item.encoding is Encoding.BASE64:
        try:
            return decode_strict(item.content, max_bytes=max_bytes)
        except Base64Refused as refused:
            raise AttachmentRefused(
                AttachmentReason.INVALID_BASE64_OR_TOO_LARGE,
                {"index": index, "problem": refused.problem.value, "limit_bytes": max_bytes},
            ) from None
    raise AttachmentRefused(AttachmentReason.INVALID_ENCODING, {"index": index, "problem": "unrecognized"})


def _encode_utf8(index: int, content: str, max_bytes: int) -> bytes:
    try:
        if utf8_size(content, at_most=max_bytes) is None:
            raise AttachmentRefused(
                AttachmentReason.FILE_BYTES_EXCEEDED, {"index": index, "limit_bytes": max_bytes}
            )
        return content.encode("utf-8")
    except UnicodeEncodeError:  # Its text would quote the content.
        raise AttachmentRefused(
            AttachmentReason.INVALID_ENCODING, {"index": index, "problem": "lone_surrogate"}
        ) from None
