"""Write a transcript as a session file, piece by piece."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import EntryFilter, PagePosition, StoredEntry
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.entry_pages import read_page, read_stored_page
from spawnmesh_transcript.operations.session_files.file_writer import (
    Exported,
    exported_id,
    has_id,
    is_import_mark,
    write_lines,
)
from spawnmesh_transcript.operations.session_files.line_writer import referred_id
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import imports as import_store

_PAGE_SIZE = 500
_PIECE_BYTES = 256 * 1024
_ALL = EntryFilter()


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes of a session file. All entries up to `read_seq` are in the pieces so far."""

    data: bytes
    read_seq: int
    incarnation: str


async def export_pieces(
    database: Database,
    blobs: BlobStore,
    workers: CpuWorkers,
    key: Key,
    *,
    after_seq: int,
    incarnation: str,
) -> AsyncGenerator[FilePiece, None]:
    """Write the file after a position, up to the head at the time of the first page.

    The last piece is empty. Raises NOT_FOUND, also for another incarnation than the given one, and
    what `rehydrate_entries` and `CpuWorkers.run` raise.
    """
    before = await _exported_at(database, key, after_seq)
    head_seq = -1
    while head_seq < 0 or after_seq < head_seq:
        page = await read_page(database, blobs, key, PagePosition(after_seq), _ALL, page_size=_PAGE_SIZE)
        incarnation = incarnation or page.head.incarnation
        if page.head.incarnation != incarnation:
            raise not_found("transcript", key.session_id)
        head_seq = page.head.seq if head_seq < 0 else head_seq
        entries = [entry for entry in page.entries if entry.seq <= head_seq]
        bodies = [entry_pb.EntryBody.FromString(entry.body) for entry in entries]
        ids = await _exported_ids(database, key, entries, bodies)
        size_bytes = sum(len(entry.body) for entry in entries)
        lines, before = await workers.run(
            key.tenant_id, size_bytes, write_lines, entries, bodies, ids, before
        )
        pending = bytearray()
        sent_seq = after_seq
        for entry, data in zip(entries, lines, strict=True):
            if pending and len(pending) + len(data) > _PIECE_BYTES:
                yield FilePiece(bytes(pending), after_seq, incarnation)
                sent_seq = after_seq
                pending.clear()
            rest = memoryview(data)
            while len(rest) > _PIECE_BYTES:
                yield FilePiece(bytes(rest[:_PIECE_BYTES]), sent_seq, incarnation)
                rest = rest[_PIECE_BYTES:]
            pending += rest
            after_seq = entry.seq
        if pending:
            yield FilePiece(bytes(pending), after_seq, incarnation)
    yield FilePiece(b"", after_seq, incarnation)


async def _exported_ids(
    database: Database, key: Key, entries: Sequence[StoredEntry], bodies: Sequence[entry_pb.EntryBody]
) -> dict[str, str]:
    """Return the ids in the file of the entries that the page refers to, by their ids in the
    transcript.

    A header has none.
    """
    referred = {referred_id(body) for body in bodies if not body.HasField("source")} - {""}
    ids = {
        entry.entry_id: exported_id(entry, body)
        for entry, body in zip(entries, bodies, strict=True)
        if entry.entry_id in referred
    }
    async with database.transaction(key.tenant_id) as connection:
        for entry_id in referred - ids.keys():  # One at a time: a body may be large.
            seqs = await import_store.find_entry_seqs(connection, key, [entry_id])
            for entry in await entry_store.read_entries(connection, key, seqs.values()):
                ids[entry_id] = exported_id(entry, entry_pb.EntryBody.FromString(entry.body))
    return ids


async def _exported_at(database: Database, key: Key, seq: int) -> Exported:
    """Return what the file has up to a seq."""
    before = seq + 1
    is_unterminated = False
    while before > 1:
        page = await read_stored_page(
            database, key, PagePosition(before, is_backwards=True), _ALL, page_size=20
        )
        for entry in reversed(page.entries):
            body = entry_pb.EntryBody.FromString(entry.body)
            is_unterminated = is_unterminated or body.source.is_unterminated
            if has_id(body) and not is_import_mark(entry, body):
                return Exported(exported_id(entry, body), is_unterminated)
        if not page.entries:
            break
        before = page.entries[0].seq
    return Exported(is_unterminated=is_unterminated)
