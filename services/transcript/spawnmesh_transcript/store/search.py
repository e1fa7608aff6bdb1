"""The search index. Each function runs in the caller's transaction."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import args_row
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.entries import EntryFilter
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store.rows import fetch_one, key_parameters
from spawnmesh_transcript.store.tenants import join_writers_statement

_SQL = load_statements(__name__)
# A long entry has tens of MiB, of which the driver and the server would hold several copies.
_BATCH_CHARS = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """The seq up to which a transcript is indexed, and its head."""

    incarnation: str
    seq: int
    head_seq: int


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """An entry that may match a search, with its stored body."""

    entry_id: str
    seq: int
    kind: str
    create_time: datetime
    body: bytes
    dropped_bytes: int


@dataclass(frozen=True, slots=True)
class SearchRange:
    """The searched entries of a transcript: those between the seqs that pass the filter."""

    after_seq: int
    before_seq: int
    wanted: EntryFilter
    from_time: datetime | None
    before_time: datetime | None
    with_superseded: bool


async def read_search_progress(connection: Connection, key: Key) -> SearchProgress | None:
    """Return how far the transcript is indexed; None if there is none."""
    row = await fetch_one(connection, _SQL["read_search_progress"], key)
    return SearchProgress(row["incarnation"], row["seq"], row["head_seq"]) if row else None


async def advance_search(
    connection: Connection, key: Key, known: SearchProgress, seq: int, pieces: Sequence[tuple[int, int, str]]
) -> None:
    """Store the pieces of entries up to a seq, each as seq, number and words.

    It does nothing if another search has stored them, or the transcript is gone.
    """
    async with connection.pipeline():
        await connection.execute(*join_writers_statement(key.tenant_id))
        locked = await connection.execute(
            _SQL["lock_indexed_transcript"], key_parameters(key, incarnation=known.incarnation)
        )
    if locked.rowcount != 1:
        return
    parameters = {
        "tenant_id": key.tenant_id,
        "session_id": key.session_id,
        "seq": seq,
        "known_seq": known.seq,
    }
    if (await connection.execute(_SQL["advance_search"], parameters)).rowcount != 1:
        return
    for some in _batches(pieces):
        seqs, numbers, words = zip(*some, strict=True)
        rows = {**parameters, "seqs": list(seqs), "pieces": list(numbers), "words": list(words)}
        await connection.execute(_SQL["insert_search_pieces"], rows)


def _batches(pieces: Sequence[tuple[int, int, str]]) -> Iterator[list[tuple[int, int, str]]]:
    """Yield the pieces in order, as many at once as one statement may have."""
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
    within: SearchRange,
    *,
    wanted: Sequence[str],
    excluded: Sequence[str],
    limit: int,
    max_bytes: int,
) -> tuple[list[FoundEntry], bool]:
    """Return up to `limit` entries with all wanted terms and none of the excluded, newest first.

    The flag says whether `max_bytes` left some of them out.
    """
    parameters = key_parameters(
        key,
        **_range_parameters(within),
        first=wanted[0],
        wanted=list(wanted[1:]),
        excluded=list(excluded),
        limit=limit,
        max_bytes=max_bytes,
    )
    async with connection.cursor(binary=True, row_factory=args_row(_counted)) as cursor:
        await cursor.execute(_SQL["search_by_words"], parameters)
        found = await cursor.fetchall()
    return [entry for entry, _ in found], bool(found) and found[0][1] > len(found)


async def measure_window(
    connection: Connection, key: Key, within: SearchRange, *, limit: int
) -> tuple[int, int]:
    """Return the number of entries between the seqs and the bytes of their bodies.

    It measures at most `limit` entries.
    """
    parameters = key_parameters(key, after_seq=within.after_seq, before_seq=within.before_seq, limit=limit)
    row = await (await connection.execute(_SQL["measure_window"], parameters)).fetchone()
    return (row["entry_count"], row["byte_count"]) if row else (0, 0)


async def read_window(connection: Connection, key: Key, within: SearchRange) -> list[FoundEntry]:
    """Return the entries of the range, newest first."""
    async with connection.cursor(binary=True, row_factory=args_row(FoundEntry)) as cursor:
        await cursor.execute(_SQL["read_window"], key_parameters(key, **_range_parameters(within)))
        return await cursor.fetchall()


def _range_parameters(within: SearchRange) -> dict[str, Any]:
    """-"""
    return {
        "after_seq": within.after_seq,
        "before_seq": within.before_seq,
        "kinds": [*within.wanted.kinds] or None,
        "roles": [*within.wanted.roles] or None,
        "from_time": within.from_time,
        "before_time": within.before_time,
        "with_superseded": within.with_superseded,
    }


def _counted(*columns: Any) -> tuple[FoundEntry, int]:
    return FoundEntry(*columns[:-1]), columns[-1]
