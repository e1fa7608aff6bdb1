"""Decode and validate inline items, in a thread if they are large."""

import asyncio
from collections.abc import Sequence

from spawnmesh_core.errors import MeshError
from spawnmesh_core.redaction_marker import is_marker_content

from spawnmesh_attachment_blob.domain import (
    AttachmentLimits,
    AttachmentReason,
    AttachmentRefused,
    InlineItem,
    ValidFile,
    validate,
)
from spawnmesh_attachment_blob.domain.errors import content_is_marker, items_refused
from spawnmesh_attachment_blob.domain.items import StoredFile

# Validation of so many characters takes about as long as starting and joining a thread.
_INLINE_CHARS = 64 * 1024


async def validate_items(
    items: Sequence[InlineItem], limits: AttachmentLimits, stored: Sequence[StoredFile]
) -> list[ValidFile]:
    """Return the items' files, which fit into one set with the stored ones.

    Raises MeshError for the first problem.
    """
    if sum(len(item.content) for item in items) <= _INLINE_CHARS:
        return _validate(items, limits, stored)
    return await asyncio.to_thread(_validate, items, limits, stored)


def _validate(
    items: Sequence[InlineItem], limits: AttachmentLimits, stored: Sequence[StoredFile]
) -> list[ValidFile]:
    try:
        files = validate(items, limits, stored)
    except AttachmentRefused as refused:
        raise _error_of(items, refused) from None
    for index, file in enumerate(files):
        if is_marker_content(file.data):
            raise content_is_marker(index)
    return files


def _error_of(items: Sequence[InlineItem], refused: AttachmentRefused) -> MeshError:
    """Build the error.

    A marker with the encoding BASE64 was copied from a transcript: report that.
    """
    index = refused.facts.get("index")
    is_not_base64 = refused.reason is AttachmentReason.INVALID_BASE64_OR_TOO_LARGE
    if is_not_base64 and isinstance(index, int) and is_marker_content(items[index].content):
        return content_is_marker(index)
    return items_refused(refused)
