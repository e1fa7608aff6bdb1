"""Moves large payloads of a transcript out of the database and back, some entries at a time; whatever is cut off, a repeat goes on with."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import psycopg
from psycopg_pool import PoolTimeout
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database

from spawnmesh_transcript import store, tenant_store, tier_store
from spawnmesh_transcript.activities import Activities
from spawnmesh_transcript.bodies import ROLES
from spawnmesh_transcript.cold_bodies import without_payloads
from spawnmesh_transcript.cooling import batches, cool, find_stale_seq
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry, StoredEntry
from spawnmesh_transcript.domain.families import Vocabulary
from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.domain.policy import TenantPolicy
from spawnmesh_transcript.domain.refusals import tier_disabled
from spawnmesh_transcript.metrics import CoolingMetrics
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.tier_store import EntrySize, InlineEntry, KeptPayload
from spawnmesh_transcript.whole import StoredBody, whole_bodies

DEFAULT_ENTRY_COUNT = 1_000

_PAGE_ROWS = 64
_CALL_SECONDS = 8.0  # Then the call answers how far it is, also where it was to look at more.
_TRIES = 3
_LARGE_ROLES = frozenset({"USER", "ASSISTANT", "TOOL_RESULT"})


class Action(StrEnum):
    """What to do."""

    DRY_RUN = "DRY_RUN"
    APPLY = "APPLY"
    REVERT = "REVERT"


@dataclass(slots=True)
class Report:
    """What was done so far, spelled as in the contract."""

    next_after_seq: int
    examined_entry_count: int = 0
    externalized_entry_count: int = 0
    cooled_entry_count: int = 0
    cooled_bytes: int = 0
    reverted_entry_count: int = 0
    reverted_bytes: int = 0
    failed_entry_count: int = 0
    failure_reason: str = ""
    failed_seq: int = 0
    done: bool = False

    def failed(self, seqs: Collection[int], reason: str) -> None:
        """Nothing could be done with these."""
        if seqs:
            self.failed_entry_count += len(seqs)
            self.failure_reason, self.failed_seq = reason, max(seqs)


@dataclass(frozen=True, slots=True)
class _Page:
    """Some entries, what payloads they have, and up to where entries are no longer fresh."""

    sizes: Sequence[EntrySize]
    kept: dict[int, list[KeptPayload]]
    stale_seq: int
    policy: TenantPolicy

    def large(self) -> list[InlineEntry]:
        """Those without payloads of their own that may be large enough for some."""
        return [
            InlineEntry(size.seq, size.stored_bytes)
            for size in self.sizes
            if size.role in _LARGE_ROLES
            and size.stored_bytes >= self.policy.large_payload_bytes
            and not any(not file.is_leaving for file in self.kept.get(size.seq, ()))
            and not size.dropped_bytes
        ]

    def waiting(self) -> set[int]:
        """Those with payloads that the blob store may not have."""
        return {
            seq for seq, files in self.kept.items() if any(not file.is_stored and not file.is_leaving for file in files)
        }

    def inline(self) -> list[InlineEntry]:
        """Those that are stale, and have their payloads in their bodies too."""
        return [
            InlineEntry(seq, sum(file.size_bytes for file in files))
            for seq, files in self.kept.items()
            if seq <= self.stale_seq and all(file.is_inline and not file.is_leaving for file in files)
        ]

    def unfinished(self) -> set[int]:
        """All with which something may be left to do."""
        return {one.seq for one in (*self.large(), *self.inline())} | self.waiting()


class Tiering:
    """Moves payloads, for whoever asks."""

    def __init__(self, database: Database, payloads: Payloads, activities: Activities, metrics: CoolingMetrics) -> None:
        self._database = database
        self._payloads = payloads
        self._activities = activities
        self._metrics = metrics

    async def tier(self, key: Key, action: Action, *, after_seq: int, max_entry_count: int) -> Report:
        """What was done with entries behind a seq. Raises NOT_FOUND, TIER_DISABLED, and DEPENDENCY_UNAVAILABLE without a blob store."""
        give_up_time = monotonic_seconds() + _CALL_SECONDS
        policy, stale_seq = await self._begin(key, action)
        report = Report(next_after_seq=after_seq)
        while not report.done and report.examined_entry_count < max_entry_count:
            row_count = min(_PAGE_ROWS, max_entry_count - report.examined_entry_count)
            try:
                page = await self._page(key, report.next_after_seq, row_count, stale_seq, policy)
            except (psycopg.Error, PoolTimeout):
                if not report.examined_entry_count:
                    raise
                break  # What was done is told; the next call says what is wrong, or goes on.
            if page.sizes:
                match action:
                    case Action.DRY_RUN:
                        await self._foretell(key, page, report)
                    case Action.APPLY:
                        await self._apply(key, page, report)
                    case Action.REVERT:
                        await self._revert(key, page, report)
                report.next_after_seq = page.sizes[-1].seq
                report.examined_entry_count += len(page.sizes)
            report.done = len(page.sizes) < row_count
            if monotonic_seconds() >= give_up_time:
                break
        if action is not Action.DRY_RUN:
            await self._tell(key, report)
        return report

    async def _begin(self, key: Key, action: Action) -> tuple[TenantPolicy, int]:
        async with self._database.transaction(key.tenant_id) as connection:
            await store.begin_snapshot(connection)
            transcript = await store.read_transcript(connection, key)
            if transcript is None:
                raise not_found("transcript", key.session_id)
            policy = await tenant_store.read_policy(connection, key.tenant_id)
            stale_seq = await find_stale_seq(connection, key, transcript)
        if action is Action.APPLY and not policy.stub_large_tool_payloads:
            raise tier_disabled()
        if not self._payloads.is_connected:
            raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "this service was not told where the blob store is")
        return replace(policy, stub_large_tool_payloads=True), stale_seq

    async def _page(self, key: Key, after_seq: int, row_count: int, stale_seq: int, policy: TenantPolicy) -> _Page:
        async with self._database.transaction(key.tenant_id) as connection:
            await store.keep_index_order(connection)
            sizes = await tier_store.scan_sizes(connection, key, after_seq=after_seq, row_count=row_count)
            if not sizes:
                return _Page((), {}, stale_seq, policy)
            kept = await tier_store.kept_payloads(connection, key, first_seq=sizes[0].seq, last_seq=sizes[-1].seq)
        return _Page(sizes, kept, stale_seq, policy)

    async def _again(self, key: Key, page: _Page) -> _Page:
        """The page with the payloads that there are now."""
        async with self._database.transaction(key.tenant_id) as connection:
            kept = await tier_store.kept_payloads(
                connection, key, first_seq=page.sizes[0].seq, last_seq=page.sizes[-1].seq
            )
        return replace(page, kept=kept)

    async def _foretell(self, key: Key, page: _Page, report: Report) -> None:
        for batch in batches(page.large()):
            for entry, stub in await self._stubs(key, batch, page.policy):
                report.externalized_entry_count += 1
                if entry.seq <= page.stale_seq:
                    report.cooled_entry_count += 1
                    report.cooled_bytes += _droppable(entry, [file.block_index for file in stub.files])
        report.externalized_entry_count += len(page.waiting())
        for batch in batches(page.inline()):
            for entry in await self._entries(key, [one.seq for one in batch]):
                report.cooled_entry_count += 1
                report.cooled_bytes += _droppable(entry, [file.block_index for file in page.kept[entry.seq]])

    async def _apply(self, key: Key, page: _Page, report: Report) -> None:
        """First what was begun to be reverted is brought to its end, then rows, then blobs, and then the inline copies."""
        failures: dict[int, str] = {}
        leaving = [seq for seq, files in page.kept.items() if any(file.is_leaving for file in files)]
        try:
            if leaving:
                failures |= await self._release(key, leaving)
                page = await self._again(key, page)
            page = await self._keep(key, page, failures)
            if waiting := page.waiting():
                reason = await self._payloads.put_waiting(key)
                page = await self._again(key, page)
                unput = waiting & page.waiting()
                report.externalized_entry_count += len(waiting - unput)
                failures |= dict.fromkeys(unput, reason or Reason.DEPENDENCY_UNAVAILABLE)
            cooled = await cool(
                self._database, self._payloads, key, [one for one in page.inline() if one.seq not in failures]
            )
            failures |= cooled.failures
            report.cooled_entry_count += cooled.entry_count
            report.cooled_bytes += cooled.size_bytes
        except (psycopg.Error, PoolTimeout):
            failures |= dict.fromkeys(page.unfinished(), Reason.DEPENDENCY_UNAVAILABLE)
        _count(failures, report)

    async def _keep(self, key: Key, page: _Page, failures: dict[int, str]) -> _Page:
        """Names the payloads that have no rows yet; the page with these. What keeps others from it goes to `failures`."""
        left: set[int] = set()
        for _ in range(_TRIES):  # What is recounted meanwhile is counted again.
            made: set[int] = set()
            kept: set[int] = set()
            for batch in batches(page.large()):
                stubs = [replace(stub, place=entry.seq) for entry, stub in await self._stubs(key, batch, page.policy)]
                if stubs:
                    made |= {stub.place for stub in stubs}
                    kept |= await tier_store.keep_payloads(self._database, key, stubs, first_seq=0)
            page = await self._again(key, page)
            left = (made - kept) & {one.seq for one in page.large()}
            if not left:
                return page
        failures |= dict.fromkeys(left, Reason.CONFLICT)
        return page

    async def _revert(self, key: Key, page: _Page, report: Report) -> None:
        """First the whole body, and in the same transaction no reference any more; then the blobs are given up, and then their rows go."""
        sizes = {size.seq: size.stored_bytes + size.dropped_bytes for size in page.sizes}
        for batch in batches([InlineEntry(seq, sizes[seq]) for seq in page.kept]):
            failures: dict[int, str] = {}
            seqs = [one.seq for one in batch]
            try:
                warmed = await self._warm(key, seqs, failures, report)
                unreleased = await self._release(key, warmed)
                report.reverted_entry_count += len(warmed) - len(unreleased)
                failures |= unreleased
            except (psycopg.Error, PoolTimeout):
                failures |= dict.fromkeys(seqs, Reason.DEPENDENCY_UNAVAILABLE)
            _count(failures, report)

    async def _release(self, key: Key, seqs: Sequence[int]) -> dict[int, str]:
        """Those of the entries that still have payloads which are to leave, and why."""
        try:
            await self._payloads.release_leaving(key, seqs)
        except MeshError as error:
            async with self._database.transaction(key.tenant_id) as connection:
                left = await tier_store.leaving_payloads(connection, key, row_count=_PAGE_ROWS * 100, seqs=seqs)
            return {seq: error.reason for _, seq in left}
        return {}

    async def _warm(self, key: Key, seqs: Sequence[int], failures: dict[int, str], report: Report) -> list[int]:
        """The entries that are whole now and have no reference; what keeps others from it goes to `failures`."""
        warmed: list[int] = []
        left = list(seqs)
        for _ in range(_TRIES):  # What a worker drops meanwhile is read again.
            if not left:
                return warmed
            entries = await self._entries(key, left)
            bodies: dict[int, bytes | None] = {}
            for entry, body in zip(
                entries, await asyncio.gather(*(self._whole(key, entry) for entry in entries)), strict=True
            ):
                if isinstance(body, Reason):
                    failures[entry.seq] = body
                else:
                    bodies[entry.seq] = body
            done = await tier_store.warm_entries(self._database, key, bodies) if bodies else {}
            report.reverted_bytes += sum(done.values())
            warmed += done
            left = [seq for seq in bodies if seq not in done]
        failures |= dict.fromkeys(left, Reason.CONFLICT)
        return warmed

    async def _whole(self, key: Key, entry: StoredEntry) -> bytes | Reason | None:
        """The whole body, why there is none to be had, or None for an entry that is whole."""
        if not entry.dropped_bytes:
            return None
        try:
            stored = StoredBody(entry.seq, entry.body, entry.dropped_bytes)
            return (await whole_bodies(self._database, self._payloads, key, [stored]))[entry.seq]
        except MeshError as error:
            return error.reason

    async def _stubs(
        self, key: Key, batch: Sequence[InlineEntry], policy: TenantPolicy
    ) -> list[tuple[StoredEntry, Stub]]:
        """The stubs of those that are large, each as its append would have made it."""
        found: list[tuple[StoredEntry, Stub]] = []
        seqs = [one.seq for one in batch]
        async with self._database.transaction(key.tenant_id) as connection:
            await store.begin_snapshot(connection)
            entries = await store.read_entries(connection, key, seqs)
            vocabularies = await store.token_vocabularies_of(connection, key, seqs)
        for entry in sorted(entries, key=lambda entry: entry.seq):
            new = _as_new(entry, vocabularies[entry.seq])
            stubs = await self._payloads.stubs_of(key, [new], policy, before_seq=entry.seq)
            found += [(entry, stub) for stub in stubs]
        return found

    async def _entries(self, key: Key, seqs: Sequence[int]) -> list[StoredEntry]:
        async with self._database.transaction(key.tenant_id) as connection:
            await store.keep_index_order(connection)
            return sorted(await store.read_entries(connection, key, seqs), key=lambda entry: entry.seq)

    async def _tell(self, key: Key, report: Report) -> None:
        self._metrics.cooled(report.cooled_entry_count, report.cooled_bytes)
        self._metrics.failed(report.failed_entry_count)
        moved = (
            (report.cooled_entry_count, report.cooled_bytes, False),
            (report.reverted_entry_count, report.reverted_bytes, True),
        )
        for entry_count, size_bytes, is_reverted in moved:
            if entry_count:
                tiered = activity_pb.Tiered(entry_count=entry_count, size_bytes=size_bytes, is_reverted=is_reverted)
                await self._activities.record(key, activity_pb.Activity(tiered=tiered))
        if report.failed_entry_count:
            failed = activity_pb.Failed(action="tier", reason=report.failure_reason, seq=report.failed_seq)
            await self._activities.record(key, activity_pb.Activity(failed=failed))


def _count(failures: dict[int, str], report: Report) -> None:
    if failures:
        report.failed(failures.keys(), failures[max(failures)])


def _droppable(entry: StoredEntry, block_indexes: Collection[int]) -> int:
    return len(entry.body) - len(without_payloads(entry.body, block_indexes))


def _as_new(entry: StoredEntry, vocabulary: Vocabulary) -> NewEntry:
    message = pb.EntryBody.FromString(entry.body).message
    return NewEntry(
        kind=EntryKind.MESSAGE,
        body=entry.body,
        token_count=entry.token_count,
        token_vocabulary=vocabulary,
        role=ROLES.get(message.role),
        answers=message.tool_call_id.strip(),
    )
