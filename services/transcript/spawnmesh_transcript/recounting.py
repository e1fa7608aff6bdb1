"""Counts what was counted by another vocabulary, some entries at a time, beside whoever writes; a repeat does what is left."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psycopg.rows import args_row
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript import store, tenant_store
from spawnmesh_transcript.domain.families import Vocabulary
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.tokens import body_token_count, count_tokens
from spawnmesh_transcript.whole import whole_entries

DEFAULT_ENTRY_COUNT = 1_000

_PAGE_ROWS = 64
_BATCH_BYTES = 4 * 1024 * 1024  # Of bodies in memory, and counted before anything is written.
_CALL_SECONDS = 8.0  # Then the call answers how far it is, also where it was to look at more.
_TRIES = 3  # References come and go by hand.

_SQL = load_statements("spawnmesh_transcript")


@dataclass(slots=True)
class Report:
    """What was counted so far, spelled as in the contract."""

    next_after_seq: int
    token_vocabulary: Vocabulary
    examined_entry_count: int = 0
    recounted_entry_count: int = 0
    token_count_before: int = 0
    token_count_after: int = 0
    done: bool = False


class ScannedCount(NamedTuple):
    """What an entry counts, and by which vocabulary. `is_counted` where it counts at all, by itself or as a summary."""

    seq: int
    token_vocabulary: str
    token_count: int
    size_bytes: int
    is_counted: bool


@dataclass(frozen=True, slots=True)
class _Counts:
    """What entries count by the vocabulary that holds, and the references that stand for some of them."""

    entries: Mapping[int, int]
    stubs: Mapping[int, int]


async def recount(
    database: Database, payloads: Payloads, key: Key, *, is_dry_run: bool, after_seq: int, max_entry_count: int
) -> Report:
    """What was counted of the entries behind a seq, by the vocabulary that the tenant's settings say.

    Raises NOT_FOUND, and DEPENDENCY_UNAVAILABLE while the blob store is away that alone has a payload.
    """
    give_up_time = monotonic_seconds() + _CALL_SECONDS
    async with database.transaction(key.tenant_id) as connection:
        transcript = await store.read_transcript(connection, key)
        policy = await tenant_store.read_policy(connection, key.tenant_id)
    if transcript is None:
        raise not_found("transcript", key.session_id)
    report = Report(after_seq, policy.token_vocabulary)
    recounting = _Recounting(database, payloads, key, transcript.head.incarnation, policy.token_vocabulary)
    while not report.done and report.examined_entry_count < max_entry_count and monotonic_seconds() < give_up_time:
        row_count = min(_PAGE_ROWS, max_entry_count - report.examined_entry_count)
        page = await recounting.scan(report.next_after_seq, row_count)
        await recounting.take(page, report, is_dry_run=is_dry_run)
        report.examined_entry_count += len(page)
        report.next_after_seq = page[-1].seq if page else report.next_after_seq
        report.done = len(page) < row_count
    return report


@dataclass(frozen=True, slots=True)
class _Recounting:
    database: Database
    payloads: Payloads
    key: Key
    incarnation: str
    vocabulary: Vocabulary

    async def scan(self, after_seq: int, row_count: int) -> list[ScannedCount]:
        async with self.database.transaction(self.key.tenant_id) as connection:
            await store.keep_index_order(connection)
            async with connection.cursor(binary=True, row_factory=args_row(ScannedCount)) as cursor:
                parameters = _parameters(self.key, after_seq=after_seq, row_count=row_count)
                await cursor.execute(_SQL["scan_counts"], parameters)
                return await cursor.fetchall()

    async def take(self, page: Sequence[ScannedCount], report: Report, *, is_dry_run: bool) -> None:
        """Counts what of the page was counted otherwise."""
        left = {one.seq: one for one in page if one.is_counted and one.token_vocabulary != self.vocabulary}
        for _ in range(_TRIES):
            for batch in _batches(list(left.values())):
                counts = await self._count([one.seq for one in batch])
                seqs = counts.entries.keys() if is_dry_run else await self._write(counts)
                report.recounted_entry_count += len(seqs)
                report.token_count_before += sum(left.pop(seq).token_count for seq in seqs)
                report.token_count_after += sum(counts.entries[seq] for seq in seqs)
            if not left:
                return

    async def _count(self, seqs: Sequence[int]) -> _Counts:
        async with self.database.transaction(self.key.tenant_id) as connection:
            await store.keep_index_order(connection)
            entries = await store.read_entries(connection, self.key, seqs)
            stubs = await _stub_bodies(connection, self.key, seqs)
        whole = await whole_entries(self.database, self.payloads, self.key, entries)
        bodies = {entry.seq: entry.body for entry in whole}
        return await asyncio.to_thread(_count_bodies, bodies, stubs, self.vocabulary)

    async def _write(self, counts: _Counts) -> set[int]:
        """The seqs that it was done for; the others are as they were, since they have changed meanwhile."""
        parameters = _parameters(
            self.key,
            incarnation=self.incarnation,
            vocabulary=self.vocabulary,
            seqs=[*counts.entries],
            token_counts=[*counts.entries.values()],
            stub_token_counts=[counts.stubs.get(seq) for seq in counts.entries],
        )
        rows = await self.database.call(self.key.tenant_id, _SQL["recount_entries"], parameters)
        return {row["recounted_seq"] for row in rows}


async def _stub_bodies(connection: Connection, key: Key, seqs: Sequence[int]) -> dict[int, bytes]:
    rows = await connection.execute(_SQL["stub_bodies"], _parameters(key, seqs=list(seqs)), binary=True)
    return {row["seq"]: row["body"] async for row in rows}


def _count_bodies(bodies: Mapping[int, bytes], stubs: Mapping[int, bytes], vocabulary: Vocabulary) -> _Counts:
    return _Counts(
        {seq: _token_count(body, vocabulary) for seq, body in bodies.items()},
        {seq: _token_count(body, vocabulary) for seq, body in stubs.items()},
    )


def _token_count(stored: bytes, vocabulary: Vocabulary) -> int:
    body = pb.EntryBody.FromString(stored)
    if body.HasField("compaction"):
        return count_tokens(body.compaction.summary, vocabulary)
    return body_token_count(body, vocabulary)


def _batches(entries: Sequence[ScannedCount]) -> Iterator[list[ScannedCount]]:
    batch: list[ScannedCount] = []
    for entry in entries:
        if batch and sum(one.size_bytes for one in batch) + entry.size_bytes > _BATCH_BYTES:
            yield batch
            batch = []
        batch.append(entry)
    if batch:
        yield batch


def _parameters(key: Key, **more: Any) -> dict[str, Any]:
    return {"tenant_id": key.tenant_id, "session_id": key.session_id, **more}
