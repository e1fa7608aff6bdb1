"""The statements about searches as functions. Each runs in the caller's transaction."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import DictRow
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.store import Filter, Key

_SQL = load_statements("spawnmesh_transcript")
_BATCH_CHARS = (
    1024 * 1024
)  # A long entry has tens of MiB, which the driver and the server would have several times over.


@dataclass(frozen=True, slots=True)
class Indexed:
    """How far a transcript's entries have been read, and how far they go."""

    incarnation: str
    seq: int
    head_seq: int


@dataclass(frozen=True, slots=True)
class Range:
    """Which entries of a transcript are searched: those between the seqs, that the filter lets through."""

    after_seq: int
    before_seq: int
    choice: Filter
    from_time: datetime | None
    before_time: datetime | None
    with_superseded: bool


async def is_descendant(connection: Connection, key: Key, ancestor_id: str) -> bool:
    """Whether the session is that one, or descends from it."""
    return bool(await _rows(connection, "is_descendant", key, ancestor_id=ancestor_id))


async def family_of(connection: Connection, key: Key) -> list[str]:
    """The session and those that descend from it, as far as there are transcripts; itself first. Needs `keep_index_order`."""
    return [row["session_id"] for row in await _rows(connection, "family_of", key)]


async def read_progress(connection: Connection, key: Key) -> Indexed | None:
    """None where there is no transcript."""
    for row in await _rows(connection, "read_search_progress", key):
        return Indexed(row["incarnation"], row["seq"], row["head_seq"])
    return None


async def advance(
    connection: Connection, key: Key, known: Indexed, seq: int, pieces: Sequence[tuple[int, int, str]]
) -> None:
    """Keeps the pieces of entries up to a seq, each as seq, number and words; nothing where another search has, or the transcript is gone."""
    if not await _rows(connection, "hold_transcript", key, incarnation=known.incarnation):
        return
    parameters = {"tenant_id": key.tenant_id, "session_id": key.session_id, "seq": seq, "known_seq": known.seq}
    if (await connection.execute(_SQL["advance_search"], parameters)).rowcount != 1:
        return
    for some in _batches(pieces):
        seqs, numbers, words = zip(*some, strict=True)
        rows = {**parameters, "seqs": list(seqs), "pieces": list(numbers), "words": list(words)}
        await connection.execute(_SQL["insert_search_pieces"], rows)


def _batches(pieces: Sequence[tuple[int, int, str]]) -> Iterator[list[tuple[int, int, str]]]:
    """The pieces in order, so many at once as one statement may have."""
    batch: list[tuple[int, int, str]] = []
    size = 0
    for piece in pieces:
        if batch and size + len(piece[2]) > _BATCH_CHARS:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += len(piece[2])
    if batch:
        yield batch


async def search_by_words(
    connection: Connection,
    key: Key,
    within: Range,
    *,
    wanted: Sequence[str],
    excluded: Sequence[str],
    limit: int,
    max_bytes: int,
) -> tuple[list[DictRow], bool]:
    """Up to `limit` entries with all the wanted terms and none of the excluded, newest first, and whether `max_bytes` left some of them out.

    Needs `keep_index_order`.
    """
    rows = await _rows(
        connection,
        "search_by_words",
        key,
        **_range(within),
        first=wanted[0],
        wanted=list(wanted[1:]),
        excluded=list(excluded),
        limit=limit,
        max_bytes=max_bytes,
    )
    return rows, bool(rows) and rows[0]["found_count"] > len(rows)


async def measure_window(connection: Connection, key: Key, within: Range, *, limit: int) -> tuple[int, int]:
    """Entries between the seqs and bytes of their bodies, counted up to a limit of entries. Needs `keep_index_order`."""
    (row,) = await _rows(
        connection, "measure_window", key, after_seq=within.after_seq, before_seq=within.before_seq, limit=limit
    )
    return row["entry_count"], row["byte_count"]


async def read_window(connection: Connection, key: Key, within: Range) -> list[DictRow]:
    """The entries themselves, newest first. Needs `keep_index_order`."""
    return await _rows(connection, "read_window", key, **_range(within))


def _range(within: Range) -> dict[str, Any]:
    return {
        "after_seq": within.after_seq,
        "before_seq": within.before_seq,
        "kinds": [*within.choice.kinds] or None,
        "roles": [*within.choice.roles] or None,
        "from_time": within.from_time,
        "before_time": within.before_time,
        "with_superseded": within.with_superseded,
    }


async def _rows(connection: Connection, statement: str, key: Key, **more: Any) -> list[DictRow]:
    parameters = {"tenant_id": key.tenant_id, "session_id": key.session_id, **more}
    return await (await connection.execute(_SQL[statement], parameters, binary=True)).fetchall()
