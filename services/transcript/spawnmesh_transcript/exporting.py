"""Gives a transcript out as a session file, piece by piece."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database

from spawnmesh_transcript import import_store, store
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.export_lines import line_of, referred_id
from spawnmesh_transcript.importing import SERVICE
from spawnmesh_transcript.operations import list_entries, list_stored_entries
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.sources import whole_line
from spawnmesh_transcript.store import Filter, Key, Position

_PAGE_SIZE = 500
_PIECE_BYTES = 256 * 1024
_ALL = Filter()
# In JSON these stand in strings alone, and some readers of lines take them for the end of one.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


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
        for entry, body in zip(page.entries, bodies, strict=False):  # Entries behind the head are not in the file.
            if not _is_ours(entry, body):
                line = whole_line(body) if body.HasField("source") else line_of(entry, body, newest_id, names)
                newest_id = _exported_id(entry, body)
                data = line.translate(_LINE_ENDS).encode() + b"\n"
                if waiting and len(waiting) + len(data) > _PIECE_BYTES:
                    yield Piece(bytes(waiting), after_seq, incarnation)
                    sent_seq = after_seq
                    waiting.clear()
                while len(data) > _PIECE_BYTES:
                    yield Piece(data[:_PIECE_BYTES], sent_seq, incarnation)
                    data = data[_PIECE_BYTES:]
                waiting += data
            after_seq = entry.seq
        if waiting:
            yield Piece(bytes(waiting), after_seq, incarnation)
    yield Piece(b"", after_seq, incarnation)


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
