"""Count the tokens of entries again that were counted by another vocabulary than that of the
tenant's settings.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.condensed import thinking_token_count
from spawnmesh_transcript.operations.bodies.tokens import body_token_count, count_tokens
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import recounts as recount_store
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store import transcripts as transcript_store
from spawnmesh_transcript.store.recounts import ScannedCount

_PAGE_ROWS = 64
_BATCH_BYTES = 4 * 1024 * 1024  # Of bodies in memory, which are counted before anything is written.
_CALL_SECONDS = 8.0  # After it the step returns, even if it was to examine more entries.
_ATTEMPTS = 3  # TierTranscript may change references meanwhile.


@dataclass(slots=True)
class RecountReport:
    """The entries that a step examined and recounted, and where to continue until `done`.

    `last_seq` is the last entry of the transcript.
    """

    next_after_seq: int
    last_seq: int
    token_vocabulary: Vocabulary
    examined_entry_count: int = 0
    recounted_entry_count: int = 0
    token_count_before: int = 0
    token_count_after: int = 0
    done: bool = False


async def recount(
    database: Database,
    blobs: BlobStore,
    workers: CpuWorkers,
    key: Key,
    *,
    after_seq: int,
    max_entry_count: int,
    is_dry_run: bool,
) -> RecountReport:
    """Examine at most this many entries after a seq, for some seconds, and count those anew that
    another vocabulary counted.

    A dry run writes nothing. Raises NOT_FOUND, and what `rehydrate_entries` and `CpuWorkers.run`
    raise.
    """
    deadline = monotonic_seconds() + _CALL_SECONDS
    async with database.transaction(key.tenant_id) as connection:
        transcript = await transcript_store.get_transcript(connection, key)
        policy = await tenant_store.read_policy(connection, key.tenant_id)
    pages = _Recount(database, blobs, workers, key, transcript.head.incarnation, policy.token_vocabulary)
    report = RecountReport(after_seq, transcript.head.seq, policy.token_vocabulary)
    while (
        not report.done and report.examined_entry_count < max_entry_count and monotonic_seconds() < deadline
    ):
        row_count = min(_PAGE_ROWS, max_entry_count - report.examined_entry_count)
        page = await pages.scan(report.next_after_seq, row_count)
        await pages.count_page(page, report, is_dry_run=is_dry_run)
        report.examined_entry_count += len(page)
        report.next_after_seq = page[-1].seq if page else report.next_after_seq
        report.done = len(page) < row_count
    return report


@dataclass(frozen=True, slots=True)
class _Counts:
    """Token counts of entries, of the references that stand for some of them, and of the thinking
    in these, by seq.
    """

    entries: Mapping[int, int]
    stubs: Mapping[int, int]
    thinking: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Recount:
    database: Database
    blobs: BlobStore
    workers: CpuWorkers
    key: Key
    incarnation: str
    vocabulary: Vocabulary

    async def scan(self, after_seq: int, row_count: int) -> list[ScannedCount]:
        async with self.database.transaction(self.key.tenant_id) as connection:
            return await recount_store.scan_counts(
                connection, self.key, after_seq=after_seq, row_count=row_count
            )

    async def count_page(
        self, page: Sequence[ScannedCount], report: RecountReport, *, is_dry_run: bool
    ) -> None:
        """Count the entries of the page that were counted by another vocabulary."""
        left = {one.seq: one for one in page if one.is_counted and one.token_vocabulary != self.vocabulary}
        for _ in range(_ATTEMPTS):
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
            entries = await entry_store.read_entries(connection, self.key, seqs)
            stubs = await recount_store.read_stub_bodies(connection, self.key, seqs)
        complete = await rehydrate_entries(self.database, self.blobs, self.key, entries)
        bodies = {entry.seq: entry.body for entry in complete}
        size_bytes = sum(map(len, (*bodies.values(), *stubs.values())))
        return await self.workers.run(
            self.key.tenant_id, size_bytes, _count_bodies, bodies, stubs, self.vocabulary
        )

    async def _write(self, counts: _Counts) -> set[int]:
        return await recount_store.recount_entries(
            self.database,
            self.key,
            incarnation=self.incarnation,
            vocabulary=self.vocabulary,
            token_counts=counts.entries,
            stub_token_counts=counts.stubs,
            thinking_token_counts=counts.thinking,
        )


def _count_bodies(bodies: Mapping[int, bytes], stubs: Mapping[int, bytes], vocabulary: Vocabulary) -> _Counts:
    return _Counts(
        {seq: _token_count(body, vocabulary) for seq, body in bodies.items()},
        {seq: _token_count(body, vocabulary) for seq, body in stubs.items()},
        {seq: thinking_token_count(body, vocabulary) for seq, body in stubs.items()},
    )


def _token_count(stored: bytes, vocabulary: Vocabulary) -> int:
    body = entry_pb.EntryBody.FromString(stored)
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
