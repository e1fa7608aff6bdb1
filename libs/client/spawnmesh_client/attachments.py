"""Files that a spawn hands over inside its request."""

import asyncio
import mimetypes
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spawnmesh.attachment_blob.v1.attachment_pb2 import ENCODING_BASE64, ENCODING_UTF8, InlineAttachment
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file by value. `mime_type` is stored and shown, but not trusted."""

    name: str
    data: bytes
    mime_type: str = ""


async def inline_items(
    attachments: Sequence[Path | Attachment], max_total_bytes: int
) -> list[InlineAttachment]:
    """Read the files into messages for the request, in the given order.

    A path is sent under its last component.

    Raises OSError for a file that cannot be read, and MeshError MESSAGE_TOO_LARGE before reading
    more than one request can hold.
    """
    items = []
    room_bytes = max_total_bytes
    for attachment in attachments:
        if isinstance(attachment, Path):
            # One byte more than fits shows that the file does not fit.
            data = await asyncio.to_thread(_read, attachment, room_bytes + 1)
            attachment = Attachment(attachment.name, data)
        room_bytes -= len(attachment.data)
        if room_bytes < 0:
            raise MeshError(
                Reason.MESSAGE_TOO_LARGE,
                "the attachments together exceed the size of one request",
                facts={"max_bytes": max_total_bytes},
            )
        items.append(_inline(attachment))
    return items


def _inline(attachment: Attachment) -> InlineAttachment:
    return InlineAttachment(
        name=attachment.name,
        content=b64encode(attachment.data).decode("ascii"),
        # Empty base64 is refused, since it is more often a field that was not filled.
        encoding=ENCODING_BASE64 if attachment.data else ENCODING_UTF8,
        mime_type=attachment.mime_type or mimetypes.guess_type(attachment.name)[0] or "",
    )


def _read(path: Path, max_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(max_bytes)
