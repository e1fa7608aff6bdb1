"""Decodes and judges inline items, off the event loop where that takes long."""

import asyncio
from collections.abc import Sequence

from spawnmesh_core.errors import MeshError

from spawnmesh_attachment_blob.domain import (
    AttachmentLimits,
    AttachmentReason,
    AttachmentRefused,
    InlineItem,
    ValidFile,
    validate,
)
from spawnmesh_attachment_blob.domain.marker import is_redaction_marker
from spawnmesh_attachment_blob.domain.sets import StoredFile
from spawnmesh_attachment_blob.errors import content_is_marker, items_refused

_INLINE_CHARS = 64 * 1024  # Done in about the time that a thread takes to be started and joined.


async def check_items(
    items: Sequence[InlineItem], limits: AttachmentLimits, uploaded: Sequence[StoredFile]
) -> list[ValidFile]:
    """The files that the items spell, fit to be in one set with those that were uploaded. Raises MeshError for the first thing wrong."""
    if sum(len(item.content) for item in items) <= _INLINE_CHARS:
        return _check(items, limits, uploaded)
    return await asyncio.to_thread(_check, items, limits, uploaded)


def _check(items: Sequence[InlineItem], limits: AttachmentLimits, uploaded: Sequence[StoredFile]) -> list[ValidFile]:
    try:
        files = validate(items, limits, uploaded)
    except AttachmentRefused as refused:
        raise _refusal(items, refused) from None
    for index, file in enumerate(files):
        if is_redaction_marker(file.data):
            raise content_is_marker(index)
    return files


def _refusal(items: Sequence[InlineItem], refused: AttachmentRefused) -> MeshError:
    """A marker where base64 was announced is told as what it is: it was copied out of a transcript."""
    index = refused.facts.get("index")
    is_not_base64 = refused.reason is AttachmentReason.INVALID_BASE64_OR_TOO_LARGE
    if is_not_base64 and isinstance(index, int) and is_redaction_marker(items[index].content):
        return content_is_marker(index)
    return items_refused(refused)
