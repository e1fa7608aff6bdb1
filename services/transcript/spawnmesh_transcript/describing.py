"""Reads the files that references name."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import MeshError, invalid, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript import payload_store, store
from spawnmesh_transcript.domain.cutting import Bytes, Content, LineCutter, Lines, cut_bytes, window_of
from spawnmesh_transcript.domain.large_results import blob_id_of, file_id_of
from spawnmesh_transcript.parse import readable_key
from spawnmesh_transcript.payload_store import StoredPayload
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.stubbing import TEXT_TYPE, payload_of
from spawnmesh_transcript.whole import whole_entries


@dataclass(frozen=True, slots=True)
class Described:
    """A file, and what was asked for of its content, if anything was."""

    payload: StoredPayload
    content: Content | None


async def describe_file(
    database: Database, payloads: Payloads, file_id: str, caller: Caller, part: Bytes | Lines | None
) -> Described:
    """The file, if the caller may read the transcript that it is in.

    Raises NOT_FOUND, INVALID_REQUEST for lines of what is no text, DEPENDENCY_UNAVAILABLE, and STORED_HASH_DIFFERS.
    """
    async with database.transaction(caller.tenant_id) as connection:
        await store.keep_index_order(connection)
        payload = await payload_store.read_payload(connection, caller.tenant_id, blob_id_of(file_id))
    if payload is None:
        raise not_found("file", file_id)
    try:
        key = await readable_key(database, payload.session_id, caller)
    except MeshError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise
        raise not_found("file", file_id) from None
    match part:
        case None:
            return Described(payload, None)
        case Bytes():
            return Described(payload, await _bytes(database, payloads, key, payload, part))
        case Lines():
            return Described(payload, await _lines(database, payloads, key, payload, part))


async def _bytes(database: Database, payloads: Payloads, key: Key, payload: StoredPayload, asked: Bytes) -> Content:
    window = window_of(asked, size=payload.size_bytes)
    data = bytearray()
    if window.length:
        async with aclosing(_pieces(database, payloads, key, payload, window)) as pieces:
            async for piece in pieces:
                data += piece
    is_text = payload.mime_type == TEXT_TYPE
    return cut_bytes(bytes(data), window.offset, asked, size=payload.size_bytes, is_text=is_text)


async def _lines(database: Database, payloads: Payloads, key: Key, payload: StoredPayload, asked: Lines) -> Content:
    if payload.mime_type != TEXT_TYPE:
        raise invalid("lines", "the file is no text: give a range of bytes")
    cutter = LineCutter(asked)
    whole = Bytes(0, payload.size_bytes)
    async with aclosing(_pieces(database, payloads, key, payload, whole)) as pieces:
        async for piece in pieces:
            if cutter.feed(piece):
                break
    return cutter.content(size=payload.size_bytes)


async def _pieces(
    database: Database, payloads: Payloads, key: Key, payload: StoredPayload, span: Bytes
) -> AsyncGenerator[bytes, None]:
    """The bytes of the span; out of the entry, where the blob store may not have them yet."""
    if payload.is_stored:
        try:
            async with aclosing(payloads.read(payload.blob_id, offset=span.offset, length=span.length)) as answers:
                async for answer in answers:
                    yield answer.data
        except MeshError as error:  # Given up meanwhile, with the transcript or with its references.
            if error.reason in (Reason.NOT_FOUND, Reason.ATTACHMENT_SET_STATE):
                raise not_found("file", file_id_of(payload.blob_id)) from None
            raise
        return
    async with database.transaction(key.tenant_id) as connection:
        await store.keep_index_order(connection)
        entries = await store.read_entries(connection, key, [payload.seq])
    if not entries:  # Deleted since.
        raise not_found("transcript", key.session_id)
    # Whole, since the payload may have been put, and dropped here, since it was looked up.
    [entry] = await whole_entries(database, payloads, key, entries)
    block = pb.EntryBody.FromString(entry.body).message.content[payload.block_index]
    yield (payload_of(block) or b"")[span.offset : span.offset + span.length]
