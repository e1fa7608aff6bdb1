"""Decides how files travel: small ones inside the spawn's own request, large ones in streams of their own before it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from spawnmesh.attachment_blob.v1.attachment_pb2 import InlineAttachment
from spawnmesh.attachment_blob.v1.upload_pb2 import UploadedAttachment

from spawnmesh_client.attachment_uploads import OnProgress, upload_file
from spawnmesh_client.attachments import Attachment, inline_items
from spawnmesh_client.token_peer import TokenPeer

INLINE_FILE_BYTES = 1024 * 1024
"""A larger file is uploaded."""


async def hand_over(
    peer: TokenPeer | None, attachments: Sequence[Path | Attachment], room_bytes: int, on_progress: OnProgress
) -> tuple[list[InlineAttachment], list[UploadedAttachment]]:
    """The files as a spawn names them: by value, and as uploads, which are complete then. Each in the order given.

    A file is uploaded that is large, or for which the request has no room left. Without a peer all of them go by value: raises
    MESSAGE_TOO_LARGE for more than there is room for. Raises OSError for a file that cannot be read, and what uploads raise.
    """
    if peer is None:
        return await inline_items(attachments, room_bytes), []
    small: list[Path | Attachment] = []
    large: list[Path | Attachment] = []
    left_bytes = room_bytes
    for attachment in attachments:
        size_bytes = await asyncio.to_thread(_size_of, attachment)
        if size_bytes > min(INLINE_FILE_BYTES, left_bytes):
            large.append(attachment)
        else:
            left_bytes -= size_bytes
            small.append(attachment)
    uploads = [await upload_file(peer, attachment, on_progress) for attachment in large]
    return await inline_items(small, room_bytes), [UploadedAttachment(upload_id=upload.upload_id) for upload in uploads]


def _size_of(attachment: Path | Attachment) -> int:
    return attachment.stat().st_size if isinstance(attachment, Path) else len(attachment.data)
