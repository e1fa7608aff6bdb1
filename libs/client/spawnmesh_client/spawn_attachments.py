"""Files of a request: small ones inside it, large ones uploaded before it, and references to files
that the mesh has.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from spawnmesh.attachment_blob.v1.attachment_pb2 import InlineAttachment, ReferencedFile
from spawnmesh.attachment_blob.v1.upload_pb2 import UploadedAttachment
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachment_uploads import OnProgress, upload_file
from spawnmesh_client.attachments import Sendable, inline_items, size_of
from spawnmesh_client.token_peer import TokenPeer

INLINE_FILE_BYTES = 1024 * 1024
"""A larger file is uploaded."""


@dataclass(frozen=True, slots=True)
class PreparedAttachments:
    """Files for a request: inline files, complete uploads and references, each in the given
    order.
    """

    inline: list[InlineAttachment]
    uploads: list[UploadedAttachment]
    references: Sequence[ReferencedFile]
    names: tuple[str, ...]
    """In the order in which refusals count the files: inline files, then uploads, then references.
    """

    @contextmanager
    def named(self) -> Iterator[None]:
        """Add the file's name to a refusal in the block that gives its index."""
        try:
            yield
        except MeshError as error:
            index = error.facts.get("index", "")
            if index.isdecimal() and int(index) < len(self.names):
                _name(error, self.names[int(index)])
            raise


async def prepare_attachments(
    peer: TokenPeer | None,
    attachments: Sequence[Sendable],
    room_bytes: int,
    on_progress: OnProgress,
    references: Sequence[ReferencedFile] = (),
) -> PreparedAttachments:
    """Read the small files and upload the large ones. Files by reference are neither.

    A file is uploaded if it is large, or if the request has no space left for it. Without a peer
    all files are inline. Raises MESSAGE_TOO_LARGE for more than fits, OSError for a file that
    cannot be read, ATTACHMENTS_INVALID_NAME for a name that is not UTF-8, and what uploads raise.
    """
    for attachment in attachments:
        _require_utf8(attachment.name)
    if peer is None:
        return _prepared(await inline_items(attachments, room_bytes), [], [], references)
    small: list[Sendable] = []
    large: list[Sendable] = []
    left_bytes = room_bytes
    for attachment in attachments:
        size_bytes = await asyncio.to_thread(size_of, attachment)
        if size_bytes > min(INLINE_FILE_BYTES, left_bytes):
            large.append(attachment)
        else:
            left_bytes -= size_bytes
            small.append(attachment)
    uploads = []
    for attachment in large:
        try:
            upload = await upload_file(peer, attachment, on_progress)
        except MeshError as error:
            _name(error, attachment.name)
            raise
        uploads.append(UploadedAttachment(upload_id=upload.upload_id))
    return _prepared(await inline_items(small, room_bytes), uploads, large, references)


def _prepared(
    inline: list[InlineAttachment],
    uploads: list[UploadedAttachment],
    uploaded: Sequence[Sendable],
    references: Sequence[ReferencedFile],
) -> PreparedAttachments:
    names = [item.name for item in inline]
    names += [file.name for file in uploaded]
    names += [file.new_name or file.name for file in references]
    return PreparedAttachments(inline, uploads, references, tuple(names))


def _require_utf8(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise MeshError(
            Reason.ATTACHMENTS_INVALID_NAME,
            "the name of a file is no UTF-8 text",
            facts={"file": ascii(name)[1:-1]},
        ) from None


def _name(error: MeshError, name: str) -> None:
    error.facts["file"] = name
