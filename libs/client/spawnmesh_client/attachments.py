"""Files that a program attaches: paths, bytes and binary streams."""

import asyncio
import io
import mimetypes
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO

from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.attachment_blob.v1.attachment_pb2 import InlineAttachment
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

Readable = io.BufferedReader | io.BytesIO


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file under a name: its bytes, a path, or a binary stream, which is read to its end once.

    `mime_type` is stored and shown, but not trusted.
    """

    name: str
    data: bytes | Path | BinaryIO
    mime_type: str = ""


@dataclass(frozen=True, slots=True)
class ReferencedFile:
    """A file of an attachment set or an output set, to attach without sending its bytes again.

    With a `new_name`, the file gets this name in the new session.
    """

    set_id: str
    name: str
    new_name: str = ""


Sendable = Path | Attachment
"""A file that can be read several times. A path is sent under its last component."""

Attachable = str | PathLike[str] | Attachment
"""A path, or an attachment."""


@asynccontextmanager
async def sendable(files: Sequence[Attachable]) -> AsyncIterator[list[Sendable]]:
    """Return the files in a form that can be read several times during the block.

    A stream is copied to a temporary file, since it may be larger than the memory.
    """
    found: list[Sendable] = []
    with tempfile.TemporaryDirectory(prefix="spawnmesh-") as folder:
        for number, file in enumerate(files):
            if not isinstance(file, Attachment):
                found.append(Path(file))
            elif isinstance(file.data, bytes | Path):
                found.append(file)
            else:
                copy = Path(folder, str(number))
                await asyncio.to_thread(_copy, file.data, copy)
                found.append(replace(file, data=copy))
        yield found


def message_of(file: ReferencedFile) -> attachment_pb2.ReferencedFile:
    """Return the message of a file by reference."""
    return attachment_pb2.ReferencedFile(set_id=file.set_id, name=file.name, new_name=file.new_name)


def opened(file: Sendable) -> AbstractContextManager[Readable]:
    """Open the file for reading."""
    data = file if isinstance(file, Path) else file.data
    if isinstance(data, bytes):
        return io.BytesIO(data)
    if isinstance(data, Path):
        return data.open("rb")
    raise TypeError("a stream can be read once: use `sendable` first")


def size_of(file: Sendable) -> int:
    """Return the size of the file in bytes."""
    with opened(file) as source:
        return source.seek(0, io.SEEK_END)


async def inline_items(attachments: Sequence[Sendable], max_total_bytes: int) -> list[InlineAttachment]:
    """Read the files into messages for the request, in the given order.

    Raises OSError for a file that cannot be read, and MeshError MESSAGE_TOO_LARGE before reading
    more than one request can hold.
    """
    items = []
    room_bytes = max_total_bytes
    for attachment in attachments:
        # One byte more than fits shows that the file does not fit.
        data = await asyncio.to_thread(_read, attachment, room_bytes + 1)
        room_bytes -= len(data)
        if room_bytes < 0:
            raise MeshError(
                Reason.MESSAGE_TOO_LARGE,
                "the attachments together exceed the size of one request",
                facts={"max_bytes": max_total_bytes},
            )
        items.append(_inline(attachment, data))
    return items


def mime_type_of(file: Sendable) -> str:
    """Return the given MIME type, or the usual one of the name's ending."""
    given = "" if isinstance(file, Path) else file.mime_type
    return given or mimetypes.guess_type(file.name)[0] or ""


def _inline(file: Sendable, data: bytes) -> InlineAttachment:
    return InlineAttachment(
        name=file.name,
        data=data,
        mime_type=mime_type_of(file),
    )


def _read(file: Sendable, max_bytes: int) -> bytes:
    with opened(file) as source:
        return source.read(max_bytes)


def _copy(source: BinaryIO, target: Path) -> None:
    with target.open("wb") as copy:
        copyfileobj(source, copy)
