"""Summaries of compactions, and the jobs that publish them.

Each function runs in the caller's transaction, except `find_published_summary`.
"""

from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import args_row, class_row
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs.job import JobArguments, NewJob
from spawnmesh_postgres.jobs.store import enqueue
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.entries import EntryKind, Head, StoredEntry
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import Role, Turn
from spawnmesh_transcript.store.rows import counted_entry, head_of, key_parameters

_SQL = load_statements(__name__)
READ_NEWEST_SUMMARY = _SQL["read_newest_summary"]

PUBLISH_SUMMARY = "publish_summary"
"""The kind of the jobs. The key of a job is the id of the summary's entry."""

IMPORTED = "IMPORTED"
"""The method of a summary that the agent of an imported session file made. An import marks other
branches after it.
"""

_ANY_SEQ = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary without its text, with the columns of the table."""

    seq: int
    entry_id: str
    first_source_seq: int
    last_source_seq: int
    previous_seq: int | None
    source_entry_count: int
    source_token_count: int
    covered_turn_count: int
    covered_token_count: int
    token_count: int
    method: str
    model: str
    run_id: str


@dataclass(frozen=True, slots=True)
class ScannedSource:
    """A message or note without its body."""

    turn: Turn
    is_superseded: bool


@dataclass(frozen=True, slots=True)
class PublishedSummary:
    """A summary as observers receive it, with its entry's body."""

    session_id: str
    entry_id: str
    source_entry_count: int
    source_token_count: int
    token_count: int
    method: str
    model: str
    run_id: str
    create_time: datetime
    body: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """The entries that no summary covers.

    `first_entry_id` is empty if there are none. `covered_token_count` has the tokens of all
    messages and notes before them.
    """

    first_entry_id: str
    token_count: int
    covered_token_count: int


async def read_newest_summary(connection: Connection, key: Key) -> Summary | None:
    """Return the summary in force; None if there is none."""
    async with connection.cursor(binary=True, row_factory=class_row(Summary)) as cursor:
        await cursor.execute(READ_NEWEST_SUMMARY, key_parameters(key))
        return await cursor.fetchone()


async def find_summary(connection: Connection, key: Key, entry_id: str) -> Summary | None:
    """Return the summary of this entry; None if there is none in a readable transcript."""
    async with connection.cursor(binary=True, row_factory=class_row(Summary)) as cursor:
        await cursor.execute(_SQL["find_summary"], key_parameters(key, entry_id=entry_id))
        return await cursor.fetchone()


async def read_summary_at(connection: Connection, key: Key, *, up_to_seq: int) -> Summary | None:
    """Return the summary that was in force when the transcript ended at this seq, if any."""
    async with connection.cursor(binary=True, row_factory=class_row(Summary)) as cursor:
        await cursor.execute(_SQL["read_summary_at"], key_parameters(key, up_to_seq=up_to_seq))
        return await cursor.fetchone()


async def count_superseded(connection: Connection, key: Key, *, after_seq: int, up_to_seq: int = 0) -> int:
    """Return the number of superseded messages and notes behind a seq. With `up_to_seq`, only
    entries up to it supersede.
    """
    statement = _SQL["count_superseded_at" if up_to_seq else "count_superseded"]
    parameters = key_parameters(key, after_seq=after_seq, up_to_seq=up_to_seq)
    row = await (await connection.execute(statement, parameters)).fetchone()
    return int(row["superseded_count"]) if row else 0


async def read_summary_token_count(connection: Connection, key: Key, seq: int) -> int:
    """Return the tokens of the summary at this seq."""
    row = await (
        await connection.execute(_SQL["read_summary_token_count"], key_parameters(key, seq=seq))
    ).fetchone()
    return int(row["token_count"]) if row else 0


async def scan_sources(
    connection: Connection, key: Key, *, after_seq: int, row_count: int
) -> list[ScannedSource]:
    """Return messages and notes behind a seq, oldest first."""
    async with connection.cursor(binary=True, row_factory=args_row(_scanned_source)) as cursor:
        await cursor.execute(
            _SQL["scan_sources"], key_parameters(key, after_seq=after_seq, row_count=row_count)
        )
        return await cursor.fetchall()


async def list_sources(
    connection: Connection, key: Key, summary: Summary, *, after_seq: int, page_size: int, max_bytes: int
) -> tuple[list[StoredEntry], bool]:
    """Return a page of a summary's messages and notes, and whether there are more."""
    parameters = key_parameters(
        key,
        after_seq=max(after_seq, summary.first_source_seq - 1),
        last_source_seq=summary.last_source_seq,
        marked_before_seq=_ANY_SEQ if summary.method == IMPORTED else summary.seq,
        page_size=page_size,
        max_bytes=max_bytes,
    )
    async with connection.cursor(binary=True, row_factory=args_row(counted_entry)) as cursor:
        await cursor.execute(_SQL["list_sources"], parameters)
        found = await cursor.fetchall()
    return [entry for entry, _ in found], bool(found) and found[0][1] > len(found)


async def read_kept(connection: Connection, key: Key, *, after_seq: int) -> Kept:
    """Return what is behind a seq and covered by no summary. Needs `lock_transcript`."""
    row = await (
        await connection.execute(_SQL["read_kept"], key_parameters(key, after_seq=after_seq))
    ).fetchone()
    if row is None:
        raise LookupError("the transaction holds the transcript's row")
    return Kept(**row)


async def lock_transcript(connection: Connection, key: Key) -> Head | None:
    """Lock the transcript until the transaction ends, and return its head; None if there is
    none.
    """
    row = await (
        await connection.execute(_SQL["lock_transcript"], key_parameters(key), binary=True)
    ).fetchone()
    return head_of(row) if row else None


async def insert_summary(connection: Connection, key: Key, summary: Summary, traceparent: str) -> None:
    """Put the summary in force and enqueue the job that publishes it, in one round trip."""
    fields = {name: getattr(summary, name) for name in Summary.__slots__}
    arguments: JobArguments = {"session_id": key.session_id, "seq": summary.seq}
    async with connection.pipeline():
        await connection.execute(_SQL["insert_summary"], key_parameters(key, **fields))
        await enqueue(
            connection, key.tenant_id, NewJob(PUBLISH_SUMMARY, summary.entry_id, arguments, traceparent)
        )


async def find_published_summary(
    database: Database, key: Key, seq: int, entry_id: str
) -> PublishedSummary | None:
    """Return the summary; None if it, its transcript or its tenant was deleted."""
    parameters = key_parameters(key, seq=seq, entry_id=entry_id)
    rows = await database.call(key.tenant_id, _SQL["read_published_summary"], parameters)
    return PublishedSummary(**rows[0]) if rows else None


def _scanned_source(
    seq: int,
    kind: str,
    role: str,
    token_count: int,
    calls: list[str],
    answers: str,
    is_synthetic: bool,
    is_superseded: bool,
    size_bytes: int,
) -> ScannedSource:
    """Take the columns of `scan_sources` in their order."""
    speaker = Role.NOTE if kind == EntryKind.NOTE else Role(role)
    turn = Turn(seq, speaker, token_count, tuple(calls), answers, is_synthetic, size_bytes=size_bytes)
    return ScannedSource(turn, is_superseded)
