"""Gives a transcript out as a session file, piece by piece."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database

from spawnmesh_transcript import import_store, store
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.export_lines import line_bytes, line_of, referred_id
from spawnmesh_transcript.importing import SERVICE
from spawnmesh_transcript.operations import list_entries, list_stored_entries
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.sources import whole_line
from spawnmesh_transcript.store import Filter, Key, Position

_PAGE_SIZE = 500
_PIECE_BYTES = 256 * 1024
_ALL = Filter()
_INLINE_BYTES = 32 * 1024  # Of a page whose lines are written in less time than a thread takes to begin.


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of the file; all entries up to `read_seq` are in what came so far."""

    data: bytes
    read_seq: int
    incarnation: str


async def export_transcript(
    database: Database, payloads: Payloads, key: Key, *, after_seq: int, incarnation: str
) -> AsyncGenerator[Piece, None]:
    """The file behind a position, up to the head there is at the beginning.

    Raises NOT_FOUND, also for another incarnation, and what making entries whole raises.
    """
    newest_id = await _exported_id_at(database, key, after_seq)
    head_seq = -1
    while head_seq < 0 or after_seq < head_seq:
        page = await list_entries(database, payloads, key, Position(after_seq), _ALL, page_size=_PAGE_SIZE)
        incarnation = incarnation or page.head.incarnation
        if page.head.incarnation != incarnation:
            raise not_found("transcript", key.session_id)
        head_seq = page.head.seq if head_seq < 0 else head_seq
        waiting = bytearray()
        sent_seq = after_seq
        bodies = [pb.EntryBody.FromString(entry.body) for entry in page.entries if entry.seq <= head_seq]
        names = await _names(database, key, page.entries, bodies)
        writing = _Writing(page.entries, bodies, names, newest_id)
        if sum(len(entry.body) for entry in page.entries) > _INLINE_BYTES:
            lines, newest_id = await asyncio.to_thread(writing.lines)
        else:
            lines, newest_id = writing.lines()
        for entry, data in zip(page.entries, lines, strict=False):  # Entries behind the head are not in the file.
            if waiting and len(waiting) + len(data) > _PIECE_BYTES:
                yield Piece(bytes(waiting), after_seq, incarnation)
                sent_seq = after_seq
                waiting.clear()
            rest = memoryview(data)
            while len(rest) > _PIECE_BYTES:
                yield Piece(bytes(rest[:_PIECE_BYTES]), sent_seq, incarnation)
                rest = rest[_PIECE_BYTES:]
            waiting += rest
            after_seq = entry.seq
        if waiting:
            yield Piece(bytes(waiting), after_seq, incarnation)
    yield Piece(b"", after_seq, incarnation)


@dataclass(frozen=True, slots=True)
class _Writing:
    """What the lines of a page are written from, behind the entry that has this id in the file."""

    entries: Sequence[StoredEntry]
    bodies: Sequence[pb.EntryBody]
    names: Mapping[str, str]
    newest_id: str

    def lines(self) -> tuple[list[bytes], str]:
        """Each entry's line with its end, nothing for one that is not in the file, and the newest id then. Work for the processor only."""
        newest_id = self.newest_id
        lines: list[bytes] = []
        for entry, body in zip(self.entries, self.bodies, strict=False):
            if _is_ours(entry, body):
                lines.append(b"")
                continue
            line = (
                whole_line(body)
                if body.HasField("source")
                else line_of(entry.entry_id, entry.create_time, body, newest_id, self.names)
            )
            newest_id = _exported_id(entry, body)
            lines.append(line_bytes(line) + b"\n")
        return lines, newest_id


async def _names(
    database: Database, key: Key, entries: Sequence[StoredEntry], bodies: Sequence[pb.EntryBody]
) -> dict[str, str]:
    """By the mesh's ids, those that entries have in the file to which others of the page refer; a header has none."""
    referred = {referred_id(body) for body in bodies if not body.HasField("source")} - {""}
    names = {
        entry.entry_id: _exported_id(entry, body)
        for entry, body in zip(entries, bodies, strict=False)
        if entry.entry_id in referred
    }
    async with database.transaction(key.tenant_id) as connection:
        await store.keep_index_order(connection)
        for entry_id in referred - names.keys():  # One at a time: a body may be large.
            seqs = await import_store.seqs_of(connection, key, [entry_id])
            for entry in await store.read_entries(connection, key, seqs):
                names[entry_id] = _exported_id(entry, pb.EntryBody.FromString(entry.body))
    return names


async def _exported_id_at(database: Database, key: Key, seq: int) -> str:
    """The id that the file's newest entry up to a position has in it; empty before the first."""
    before = seq + 1
    while before > 1:
        page = await list_stored_entries(database, key, Position(before, is_downwards=True), _ALL, page_size=20)
        for entry in reversed(page.entries):
            body = pb.EntryBody.FromString(entry.body)
            if not _is_ours(entry, body):
                return _exported_id(entry, body)
        if not page.entries:
            return ""
        before = page.entries[0].seq
    return ""


def _exported_id(entry: StoredEntry, body: pb.EntryBody) -> str:
    if body.HasField("header"):
        return ""  # The first entry behind a header has no parent.
    return body.source.id if body.HasField("source") else entry.entry_id


def _is_ours(entry: StoredEntry, body: pb.EntryBody) -> bool:
    """A mark that an import made: the file says it by its branches."""
    return body.HasField("label") and not body.HasField("source") and entry.writer_service == SERVICE
