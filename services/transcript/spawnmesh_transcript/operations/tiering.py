"""Move large payloads of a transcript to the blob store and back, some entries in each step.

A repeated step resumes.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg_pool import PoolTimeout
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.domain.policy import TranscriptPolicy
from spawnmesh_transcript.domain.refusals import not_configured, tier_disabled
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.metrics import ExternalizationMetrics
from spawnmesh_transcript.operations.activity_recorder import ActivityRecorder
from spawnmesh_transcript.operations.bodies.payload_blocks import without_payloads
from spawnmesh_transcript.operations.condensing import as_new, condense_entries
from spawnmesh_transcript.operations.externalization import batches, drop_inline_copies, find_stale_seq
from spawnmesh_transcript.operations.payload_uploader import PayloadUploader
from spawnmesh_transcript.operations.rehydration import StoredBody, rehydrate_bodies
from spawnmesh_transcript.operations.stub_creation import create_stubs
from spawnmesh_transcript.operations.tier_report import TierAction, TierReport
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import snapshots
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store import tier as tier_store
from spawnmesh_transcript.store import transcripts as transcript_store
from spawnmesh_transcript.store.entries import EntrySize
from spawnmesh_transcript.store.tier import InlineEntry, PayloadLocation

_PAGE_ROWS = 64
_CALL_SECONDS = 8.0  # After it the step returns, even if it was to examine more entries.
_ATTEMPTS = 3
_LARGE_ROLES = frozenset({"USER", "ASSISTANT", "TOOL_RESULT"})


@dataclass(frozen=True, slots=True)
class _Page:
    """Some entries, their payloads, and the newest seq that is no longer fresh."""

    sizes: Sequence[EntrySize]
    kept: dict[int, list[PayloadLocation]]
    stale_seq: int
    policy: TranscriptPolicy

    def large(self) -> list[InlineEntry]:
        """Return the entries without payload rows that may be large enough for some."""
        return [
            InlineEntry(size.seq, size.stored_bytes)
            for size in self.sizes
            if size.role in _LARGE_ROLES
            and size.stored_bytes >= self.policy.large_payload_bytes
            and not any(not file.is_releasing for file in self.kept.get(size.seq, ()))
            and not size.dropped_bytes
        ]

    def waiting(self) -> set[int]:
        """Return the entries with payloads that the blob store may not have."""
        return {
            seq
            for seq, files in self.kept.items()
            if any(not file.is_stored and not file.is_releasing for file in files)
        }

    def inline(self) -> list[InlineEntry]:
        """Return the stale entries that also have their payloads inline."""
        return [
            InlineEntry(seq, sum(file.size_bytes for file in files))
            for seq, files in self.kept.items()
            if seq <= self.stale_seq and all(file.is_inline and not file.is_releasing for file in files)
        ]

    def unfinished(self) -> set[int]:
        """Return all entries that may not be finished."""
        return {one.seq for one in (*self.large(), *self.inline())} | self.waiting()


class PayloadTiering:
    """Move payloads for TierTranscript."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        workers: CpuWorkers,
        uploader: PayloadUploader,
        activities: ActivityRecorder,
        metrics: ExternalizationMetrics,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._workers = workers
        self._uploader = uploader
        self._activities = activities
        self._metrics = metrics

    async def tier(self, key: Key, action: TierAction, *, after_seq: int, max_entry_count: int) -> TierReport:
        """Move the payloads of entries after a seq.

        Raises NOT_FOUND, TIER_DISABLED, and DEPENDENCY_UNAVAILABLE without a blob store.
        """
        deadline = monotonic_seconds() + _CALL_SECONDS
        policy, stale_seq, last_seq = await self.check(key, action)
        report = TierReport(next_after_seq=after_seq, last_seq=last_seq)
        while not report.done and report.examined_entry_count < max_entry_count:
            row_count = min(_PAGE_ROWS, max_entry_count - report.examined_entry_count)
            try:
                page = await self._read_page(key, report.next_after_seq, row_count, stale_seq, policy)
            except (psycopg.Error, PoolTimeout):
                if not report.examined_entry_count:
                    raise
                break  # Report what is done; the next step resumes, or raises.
            if page.sizes:
                match action:
                    case TierAction.DRY_RUN:
                        await self._dry_run(key, page, report)
                    case TierAction.APPLY:
                        await self._apply(key, page, report)
                    case TierAction.REVERT:
                        await self._revert(key, page, report)
                report.next_after_seq = page.sizes[-1].seq
                report.examined_entry_count += len(page.sizes)
            report.done = len(page.sizes) < row_count
            if monotonic_seconds() >= deadline:
                break
        if action is not TierAction.DRY_RUN:
            await self._record(key, report)
        return report

    async def check(self, key: Key, action: TierAction) -> tuple[TranscriptPolicy, int, int]:
        """Return the policy, the last stale entry and the last entry of the transcript.

        Raises NOT_FOUND, TIER_DISABLED, and DEPENDENCY_UNAVAILABLE without a blob store.
        """
        async with self._database.transaction(key.tenant_id) as connection:
            await snapshots.begin_snapshot(connection)
            transcript = await transcript_store.get_transcript(connection, key)
            policy = await tenant_store.read_policy(connection, key.tenant_id)
            stale_seq = await find_stale_seq(connection, key, transcript)
        if action is TierAction.APPLY and not policy.stub_large_tool_payloads:
            raise tier_disabled()
        if not self._blobs.is_connected:
            raise not_configured("blob store", "ATTACHMENT_BLOB_TARGET")
        return replace(policy, stub_large_tool_payloads=True), stale_seq, transcript.head.seq

    async def _read_page(
        self, key: Key, after_seq: int, row_count: int, stale_seq: int, policy: TranscriptPolicy
    ) -> _Page:
        async with self._database.transaction(key.tenant_id) as connection:
            sizes = await entry_store.scan_sizes(connection, key, after_seq=after_seq, row_count=row_count)
            if not sizes:
                return _Page((), {}, stale_seq, policy)
            kept = await tier_store.scan_payloads(
                connection, key, first_seq=sizes[0].seq, last_seq=sizes[-1].seq
            )
        return _Page(sizes, kept, stale_seq, policy)

    async def _reload(self, key: Key, page: _Page) -> _Page:
        """Return the page with the current payloads."""
        async with self._database.transaction(key.tenant_id) as connection:
            kept = await tier_store.scan_payloads(
                connection, key, first_seq=page.sizes[0].seq, last_seq=page.sizes[-1].seq
            )
        return replace(page, kept=kept)

    async def _dry_run(self, key: Key, page: _Page, report: TierReport) -> None:
        large: set[int] = set()
        for batch in batches(page.large()):
            for entry, stub in await self._create_stubs(key, batch, page.policy):
                large |= {entry.seq} if stub.body is not None else set()
                report.externalized_entry_count += 1
                if entry.seq <= page.stale_seq:
                    report.cooled_entry_count += 1
                    report.cooled_bytes += _droppable_bytes(entry, [file.block_index for file in stub.files])
        report.externalized_entry_count += len(page.waiting())
        rest = [size for size in page.sizes if size.seq not in large]
        condensed = await condense_entries(
            self._database, self._blobs, self._workers, key, rest, is_dry_run=True
        )
        report.condensed_entry_count += condensed.entry_count
        for batch in batches(page.inline()):
            for entry in await self._read_entries(key, [one.seq for one in batch]):
                report.cooled_entry_count += 1
                report.cooled_bytes += _droppable_bytes(
                    entry, [file.block_index for file in page.kept[entry.seq]]
                )

    async def _apply(self, key: Key, page: _Page, report: TierReport) -> None:
        """Finish an interrupted revert, write the payload rows, upload, and then drop the inline
        copies.
        """
        failures: dict[int, str] = {}
        releasing = [seq for seq, files in page.kept.items() if any(file.is_releasing for file in files)]
        try:
            if releasing:
                failures |= await self._release(key, releasing)
                page = await self._reload(key, page)
            page = await self._record_payloads(key, page, failures)
            condensed = await condense_entries(self._database, self._blobs, self._workers, key, page.sizes)
            report.condensed_entry_count += condensed.entry_count
            failures |= condensed.failures
            if waiting := page.waiting():
                reason = await self._uploader.start(key)
                page = await self._reload(key, page)
                pending = waiting & page.waiting()
                report.externalized_entry_count += len(waiting - pending)
                failures |= dict.fromkeys(pending, reason or Reason.DEPENDENCY_UNAVAILABLE)
            dropped = await drop_inline_copies(
                self._database, self._blobs, key, [one for one in page.inline() if one.seq not in failures]
            )
            failures |= dropped.failures
            report.cooled_entry_count += dropped.entry_count
            report.cooled_bytes += dropped.size_bytes
        except (psycopg.Error, PoolTimeout):
            failures |= dict.fromkeys(page.unfinished(), Reason.DEPENDENCY_UNAVAILABLE)
        _count(failures, report)

    async def _record_payloads(self, key: Key, page: _Page, failures: dict[int, str]) -> _Page:
        """Write the payload rows that are missing, and return the page with them.

        Entries for which this fails are added to `failures`.
        """
        left: set[int] = set()
        for _ in range(_ATTEMPTS):  # A concurrent recount makes new stubs necessary.
            made: set[int] = set()
            kept: set[int] = set()
            for batch in batches(page.large()):
                stubs = [
                    replace(stub, place=entry.seq)
                    for entry, stub in await self._create_stubs(key, batch, page.policy)
                ]
                if stubs:
                    made |= {stub.place for stub in stubs}
                    kept |= await tier_store.record_payloads(self._database, key, stubs, first_seq=0)
            page = await self._reload(key, page)
            left = (made - kept) & {one.seq for one in page.large()}
            if not left:
                return page
        failures |= dict.fromkeys(left, Reason.CONFLICT)
        return page

    async def _revert(self, key: Key, page: _Page, report: TierReport) -> None:
        """Restore the complete body and delete the references in one transaction, then release the
        blobs, and then delete their rows. Delete the condensed messages.
        """
        await tier_store.delete_condensed(
            self._database, key, first_seq=page.sizes[0].seq, last_seq=page.sizes[-1].seq
        )
        sizes = {size.seq: size.stored_bytes + size.dropped_bytes for size in page.sizes}
        for batch in batches([InlineEntry(seq, sizes[seq]) for seq in page.kept]):
            failures: dict[int, str] = {}
            seqs = [one.seq for one in batch]
            try:
                restored = await self._restore(key, seqs, failures, report)
                unreleased = await self._release(key, restored)
                report.reverted_entry_count += len(restored) - len(unreleased)
                failures |= unreleased
            except (psycopg.Error, PoolTimeout):
                failures |= dict.fromkeys(seqs, Reason.DEPENDENCY_UNAVAILABLE)
            _count(failures, report)

    async def _release(self, key: Key, seqs: Sequence[int]) -> dict[int, str]:
        """Release the payloads that are marked for it, and return the entries that still have
        some, with the reason.
        """
        try:
            await self._uploader.release_marked(key, seqs)
        except MeshError as error:
            async with self._database.transaction(key.tenant_id) as connection:
                left = await tier_store.list_releasing_payloads(
                    connection, key, row_count=_PAGE_ROWS * 100, seqs=seqs
                )
            return {seq: error.reason for _, seq in left}
        return {}

    async def _restore(
        self, key: Key, seqs: Sequence[int], failures: dict[int, str], report: TierReport
    ) -> list[int]:
        """Return the entries that are complete now and have no reference.

        Entries for which this fails are added to `failures`.
        """
        restored: list[int] = []
        left = list(seqs)
        for _ in range(_ATTEMPTS):  # A worker may drop inline copies meanwhile.
            if not left:
                return restored
            entries = await self._read_entries(key, left)
            bodies: dict[int, bytes | None] = {}
            for entry, body in zip(
                entries,
                await asyncio.gather(*(self._complete_body(key, entry) for entry in entries)),
                strict=True,
            ):
                if isinstance(body, Reason):
                    failures[entry.seq] = body
                else:
                    bodies[entry.seq] = body
            done = await tier_store.restore_inline_payloads(self._database, key, bodies) if bodies else {}
            report.reverted_bytes += sum(done.values())
            restored += done
            left = [seq for seq in bodies if seq not in done]
        failures |= dict.fromkeys(left, Reason.CONFLICT)
        return restored

    async def _complete_body(self, key: Key, entry: StoredEntry) -> bytes | Reason | None:
        """Return the complete body, the reason why it cannot be built, or None for an entry that
        is complete.
        """
        if not entry.dropped_bytes:
            return None
        try:
            stored = StoredBody(entry.seq, entry.body, entry.dropped_bytes)
            return (await rehydrate_bodies(self._database, self._blobs, key, [stored]))[entry.seq]
        except MeshError as error:
            return error.reason

    async def _create_stubs(
        self, key: Key, batch: Sequence[InlineEntry], policy: TranscriptPolicy
    ) -> list[tuple[StoredEntry, Stub]]:
        """Return the stubs of the large entries, each as its append would have made it."""
        found: list[tuple[StoredEntry, Stub]] = []
        seqs = [one.seq for one in batch]
        async with self._database.transaction(key.tenant_id) as connection:
            await snapshots.begin_snapshot(connection)
            entries = await entry_store.read_entries(connection, key, seqs)
            vocabularies = await entry_store.read_token_vocabularies(connection, key, seqs)
        for entry in sorted(entries, key=lambda entry: entry.seq):
            new = as_new(entry, vocabularies[entry.seq])
            stubs = await create_stubs(
                self._database, self._blobs, self._workers, key, [new], policy, before_seq=entry.seq
            )
            found += [(entry, stub) for stub in stubs if stub.files]
        return found

    async def _read_entries(self, key: Key, seqs: Sequence[int]) -> list[StoredEntry]:
        async with self._database.transaction(key.tenant_id) as connection:
            return sorted(await entry_store.read_entries(connection, key, seqs), key=lambda entry: entry.seq)

    async def _record(self, key: Key, report: TierReport) -> None:
        self._metrics.dropped(report.cooled_entry_count, report.cooled_bytes)
        self._metrics.failed(report.failed_entry_count)
        moved = (
            (report.cooled_entry_count, report.cooled_bytes, False),
            (report.reverted_entry_count, report.reverted_bytes, True),
        )
        for entry_count, size_bytes, is_reverted in moved:
            if entry_count:
                tiered = activity_pb.Tiered(
                    entry_count=entry_count, size_bytes=size_bytes, is_reverted=is_reverted
                )
                await self._activities.record(key, activity_pb.Activity(tiered=tiered))
        if report.failed_entry_count:
            failed = activity_pb.Failed(
                action=activity_pb.FAILED_ACTION_TIER, reason=report.failure_reason, seq=report.failed_seq
            )
            await self._activities.record(key, activity_pb.Activity(failed=failed))


def _count(failures: dict[int, str], report: TierReport) -> None:
    if failures:
        report.failed(failures.keys(), failures[max(failures)])


def _droppable_bytes(entry: StoredEntry, block_indexes: Collection[int]) -> int:
    return len(entry.body) - len(without_payloads(entry.body, block_indexes))
