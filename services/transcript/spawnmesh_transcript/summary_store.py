"""The statements about summaries as functions. Each runs in the caller's transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from psycopg.rows import args_row, class_row
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.entries import EntryKind, Head, NewEntry, StoredEntry, WriterClaim
from spawnmesh_transcript.domain.turns import Role, Turn
from spawnmesh_transcript.store import Key, counted_entry, entry_parameters, head_of

_SQL = load_statements("spawnmesh_transcript")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a summary stands for, without its text; spelled as in the table."""

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


class ScannedSource(NamedTuple):
    """A message or note without its body."""

    turn: Turn
    is_superseded: bool


class UntoldSummary(NamedTuple):
    """A summary that observers do not know of yet, with its entry's body."""

    session_id: str
    seq: int
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
    """What no summary stands for: its first entry, empty where there is none, and its tokens; and those of all messages and notes before."""

    first_entry_id: str
    token_count: int
    covered_token_count: int


async def newest_summary(connection: Connection, key: Key) -> Summary | None:
    """The summary that holds; None where nothing is summarized."""
    async with connection.cursor(binary=True, row_factory=class_row(Summary)) as cursor:
        await cursor.execute(_SQL["newest_summary"], _parameters(key))
        return await cursor.fetchone()


async def find_summary(connection: Connection, key: Key, entry_id: str) -> Summary | None:
    """The summary of that entry; None where the entry is none, or the transcript cannot be read."""
    async with connection.cursor(binary=True, row_factory=class_row(Summary)) as cursor:
        await cursor.execute(_SQL["find_summary"], _parameters(key, entry_id=entry_id))
        return await cursor.fetchone()


async def count_superseded(connection: Connection, key: Key, *, after_seq: int) -> int:
    """How many messages and notes behind a seq were superseded. Needs `keep_index_order`."""
    row = await (await connection.execute(_SQL["count_superseded"], _parameters(key, after_seq=after_seq))).fetchone()
    return int(row["superseded_count"]) if row else 0


async def token_count_of(connection: Connection, key: Key, seq: int) -> int:
    """Tokens of the summary at that seq."""
    row = await (await connection.execute(_SQL["summary_token_count"], _parameters(key, seq=seq))).fetchone()
    return int(row["token_count"]) if row else 0


async def scan_sources(connection: Connection, key: Key, *, after_seq: int, row_count: int) -> list[ScannedSource]:
    """Messages and notes behind a seq, oldest first. Needs `keep_index_order`."""
    async with connection.cursor(binary=True, row_factory=args_row(_scanned_source)) as cursor:
        await cursor.execute(_SQL["scan_sources"], _parameters(key, after_seq=after_seq, row_count=row_count))
        return await cursor.fetchall()


async def list_sources(
    connection: Connection, key: Key, summary: Summary, *, after_seq: int, page_size: int, max_bytes: int
) -> tuple[list[StoredEntry], bool]:
    """A page of a summary's messages and notes, and whether there are more. Needs `keep_index_order`."""
    parameters = _parameters(
        key,
        after_seq=max(after_seq, summary.first_source_seq - 1),
        last_source_seq=summary.last_source_seq,
        summary_seq=summary.seq,
        page_size=page_size,
        max_bytes=max_bytes,
    )
    async with connection.cursor(binary=True, row_factory=args_row(counted_entry)) as cursor:
        await cursor.execute(_SQL["list_sources"], parameters)
        found = await cursor.fetchall()
    return [entry for entry, _ in found], bool(found) and found[0][1] > len(found)


async def read_kept(connection: Connection, key: Key, *, after_seq: int) -> Kept:
    """What stands behind a seq, which no summary covers yet. Needs `lock_transcript` and `keep_index_order`."""
    row = await (await connection.execute(_SQL["read_kept"], _parameters(key, after_seq=after_seq))).fetchone()
    if row is None:
        raise LookupError("the transcript's row is held")
    return Kept(**row)


async def lock_transcript(connection: Connection, key: Key) -> Head | None:
    """Where the transcript stands until the transaction ends; None where there is none."""
    row = await (await connection.execute(_SQL["lock_transcript"], _parameters(key), binary=True)).fetchone()
    return head_of(row) if row else None


async def append_summary(
    connection: Connection, key: Key, entry: NewEntry, *, claim: WriterClaim | None, client: str
) -> Head:
    """Puts the entry behind the head. Needs `lock_transcript`."""
    parameters = _parameters(
        key,
        run_id=claim.run_id if claim else "",
        epoch=claim.epoch if claim else 0,
        client=client,
        **entry_parameters([entry]),
    )
    row = await (await connection.execute(_SQL["write_summary_entry"], parameters, binary=True)).fetchone()
    if row is None:
        raise LookupError("a function call answers one row")
    return head_of(row)


async def insert_summary(connection: Connection, key: Key, summary: Summary) -> None:
    """The summary holds from now on."""
    fields = {name: getattr(summary, name) for name in Summary.__slots__}
    await connection.execute(_SQL["insert_summary"], _parameters(key, **fields))


async def untold_summaries(connection: Connection, tenant_id: str, *, row_count: int) -> list[UntoldSummary]:
    """Summaries that observers do not know of yet. Needs `keep_index_order`."""
    async with connection.cursor(binary=True, row_factory=args_row(UntoldSummary)) as cursor:
        await cursor.execute(_SQL["untold_summaries"], {"tenant_id": tenant_id, "row_count": row_count})
        return await cursor.fetchall()


async def mark_told(connection: Connection, tenant_id: str, told: Sequence[UntoldSummary]) -> None:
    """Observers know of these."""
    parameters = [_parameters(Key(tenant_id, one.session_id), seq=one.seq) for one in told]
    async with connection.cursor() as cursor:
        await cursor.executemany(_SQL["mark_told"], parameters)


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
    """For the columns of `scan_sources` in their order."""
    speaker = Role.NOTE if kind == EntryKind.NOTE else Role(role)
    turn = Turn(seq, speaker, token_count, tuple(calls), answers, is_synthetic, size_bytes=size_bytes)
    return ScannedSource(turn, is_superseded)


def _parameters(key: Key, **more: Any) -> dict[str, Any]:
    return {"tenant_id": key.tenant_id, "session_id": key.session_id, **more}
