"""Read a part of a file: from its entry until the blob store has it, and then from there.

A file of a condensed message is always read from its entry.
"""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.errors import MeshError, invalid, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.condensation import CondensedFile
from spawnmesh_transcript.domain.file_parts import Bytes, Content, LineCutter, Lines, cut_bytes, window_of
from spawnmesh_transcript.domain.large_results import blob_id_of, file_id_of, line_count_of
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.condensed import left_out_file
from spawnmesh_transcript.operations.bodies.stubs import TEXT_TYPE, payload_of
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store.payloads import CondensedEntry, StoredPayload


async def find_condensed(
    database: Database, blobs: BlobStore, key: Key, entry: CondensedEntry, file: CondensedFile
) -> tuple[StoredPayload, bytes]:
    """Return a file of a condensed message, and its content.

    Raises NOT_FOUND if the message has no such file, DEPENDENCY_UNAVAILABLE, and
    STORED_HASH_DIFFERS.
    """
    body = await _read_body(database, blobs, key, entry.seq)
    found = left_out_file(body, file)
    if found is None:
        raise not_found("file", file.file_id)
    payload = StoredPayload(
        blob_id=blob_id_of(file.file_id),
        session_id=entry.session_id,
        seq=entry.seq,
        block_index=file.block_index,
        tool_name=found.tool_name,
        about="",
        mime_type=found.mime_type,
        size_bytes=len(found.data),
        line_count=line_count_of(found.data.decode()) if found.mime_type == TEXT_TYPE else 0,
        sha256=hashlib.sha256(found.data).hexdigest(),
        is_stored=False,
        entry_id=entry.entry_id,
        create_time=entry.create_time,
    )
    return payload, found.data


def part_of(payload: StoredPayload, data: bytes, part: Bytes | Lines) -> Content:
    """Return the part of a content that is in memory.

    Raises INVALID_REQUEST for lines that the file does not have.
    """
    match part:
        case Bytes():
            window = window_of(part, size=len(data))
            piece = data[window.offset : window.offset + window.length]
            is_text = payload.mime_type == TEXT_TYPE
            return cut_bytes(piece, window.offset, part, size=len(data), is_text=is_text)
        case Lines():
            _require_lines(payload, part)
            cutter = LineCutter(part)
            cutter.feed(data)
            return cutter.content(size=len(data))


async def read_part(
    database: Database, blobs: BlobStore, key: Key, payload: StoredPayload, part: Bytes | Lines
) -> Content:
    """Return the part of the payload's content.

    Raises INVALID_REQUEST for lines that the file does not have, NOT_FOUND if the payload was
    released meanwhile, DEPENDENCY_UNAVAILABLE, and STORED_HASH_DIFFERS.
    """
    match part:
        case Bytes():
            return await _read_bytes(database, blobs, key, payload, part)
        case Lines():
            return await _read_lines(database, blobs, key, payload, part)


async def _read_bytes(
    database: Database, blobs: BlobStore, key: Key, payload: StoredPayload, wanted: Bytes
) -> Content:
    window = window_of(wanted, size=payload.size_bytes)
    data = bytearray()
    if window.length:
        async with aclosing(_read_pieces(database, blobs, key, payload, window)) as pieces:
            async for piece in pieces:
                data += piece
    is_text = payload.mime_type == TEXT_TYPE
    return cut_bytes(bytes(data), window.offset, wanted, size=payload.size_bytes, is_text=is_text)


async def _read_lines(
    database: Database, blobs: BlobStore, key: Key, payload: StoredPayload, wanted: Lines
) -> Content:
    _require_lines(payload, wanted)
    cutter = LineCutter(wanted)
    async with aclosing(_read_pieces(database, blobs, key, payload, Bytes(0, payload.size_bytes))) as pieces:
        async for piece in pieces:
            if cutter.feed(piece):
                break
    return cutter.content(size=payload.size_bytes)


def _require_lines(payload: StoredPayload, wanted: Lines) -> None:
    if payload.mime_type != TEXT_TYPE:
        raise invalid("lines", "the file is no text: give a range of bytes")
    if wanted.first_line > max(payload.line_count, 1):
        raise invalid("lines.first_line", f"the file has {payload.line_count} lines")


async def _read_body(database: Database, blobs: BlobStore, key: Key, seq: int) -> bytes:
    """Return the complete body of an entry."""
    async with database.transaction(key.tenant_id) as connection:
        entries = await entry_store.get_entries(connection, key, [seq])
    # Payloads may have been uploaded and externalized since they were read.
    [entry] = await rehydrate_entries(database, blobs, key, [*entries.values()])
    return entry.body


async def _read_pieces(
    database: Database, blobs: BlobStore, key: Key, payload: StoredPayload, span: Bytes
) -> AsyncGenerator[bytes, None]:
    """Read the bytes of the span: from the entry if the blob store may not have the payload yet."""
    if payload.is_stored:
        try:
            async with aclosing(
                blobs.read(payload.blob_id, offset=span.offset, length=span.length)
            ) as responses:
                async for response in responses:
                    yield response.data
        # Released meanwhile, with the transcript or with its references.
        except MeshError as error:
            if error.reason in (Reason.NOT_FOUND, Reason.ATTACHMENT_SET_STATE):
                raise not_found("file", file_id_of(payload.blob_id)) from None
            raise
        return
    body = await _read_body(database, blobs, key, payload.seq)
    block = entry_pb.EntryBody.FromString(body).message.content[payload.block_index]
    yield (payload_of(block) or b"")[span.offset : span.offset + span.length]
