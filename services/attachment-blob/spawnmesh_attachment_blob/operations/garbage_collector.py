"""Compares a tenant's bucket with its rows, in both directions, and repairs interrupted work.

The rows that record unfinished work come first, then the bucket. All work goes in pages. Leftovers
younger than the grace period are left, because their call may still run.

A row whose object is missing or has another size is never removed: it is the only record of the
lost file. It is marked LOST. A call that sends the bytes again repairs all sets that refer to
them. An object that S3 refuses to delete is counted, logged and left to the next collection; it
delays nothing else.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from spawnmesh_core.audit_event import Record, work_event
from spawnmesh_core.clock import Clock, monotonic_seconds, utc_now
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.telemetry import traced

from spawnmesh_attachment_blob.clients.multiparts import BucketMissing, MultipartEntry, Multiparts
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import DeletionsRefused
from spawnmesh_attachment_blob.domain.comparison import BlobEntry, Differences, compare
from spawnmesh_attachment_blob.domain.garbage import Ages, GarbageCounts, GarbagePhase, GarbagePosition
from spawnmesh_attachment_blob.operations.garbage_metrics import GarbageMetrics
from spawnmesh_attachment_blob.operations.releaser import Releaser
from spawnmesh_attachment_blob.operations.upload_remover import UploadRemover
from spawnmesh_attachment_blob.store import blobs as blob_rows
from spawnmesh_attachment_blob.store import garbage, tenants, uploads
from spawnmesh_attachment_blob.store.garbage import BEFORE_ALL_TOMBSTONES, KeyPage, Tombstone

WORKER = "attachment-blob-worker"
"""The process that collects, as its heartbeats and its audit events name it."""

_PREFIX = "sha256/"
_COLLECT_GARBAGE = "spawnmesh.attachment_blob.v1.AttachmentBlobService/CollectGarbage"

RowsQuery = Callable[[Connection, str, KeyPage, int], Awaitable[list[str]]]

log = structlog.get_logger()


class _Expiry:
    """Reports what a worker removed because it has expired, if it has a record."""

    def __init__(self, tenant_id: str, record: Record | None) -> None:
        self._tenant_id = tenant_id
        self._record = record

    def report(self, name: str, resource_id: str) -> None:
        """Record that the resource was removed now."""
        if self._record is not None:
            resource = name, resource_id
            self._record(work_event(WORKER, self._tenant_id, _COLLECT_GARBAGE, utc_now(), resource))


@dataclass(frozen=True, slots=True)
class _GarbagePage:
    """A page of a phase: the key that it begins behind, and the counts to add to."""

    tenant_id: str
    after: tuple[str, ...]
    counts: GarbageCounts
    dry_run: bool
    expiry: _Expiry


class GarbageCollector:
    """Collects the garbage of one tenant at a time. Concurrent collections are safe."""

    def __init__(
        self,
        database: Database,
        objects: ObjectStore,
        multiparts: Multiparts,
        releaser: Releaser,
        upload_remover: UploadRemover,
        ages: Ages,
        metrics: GarbageMetrics,
        *,
        page_rows: int = 200,
        clock: Clock = utc_now,
    ) -> None:
        self._database = database
        self._objects = objects
        self._multiparts = multiparts
        self._releaser = releaser
        self._upload_remover = upload_remover
        self._ages = ages
        self._metrics = metrics
        self._page_rows = page_rows
        self._clock = clock
        self._phases: dict[GarbagePhase, Callable[[_GarbagePage], Awaitable[tuple[str, ...] | None]]] = {
            GarbagePhase.UNREMOVED_SETS: self._collect_unremoved_sets,
            GarbagePhase.OUTLIVED_SETS: self._collect_outlived_sets,
            GarbagePhase.ABANDONED_SETS: self._collect_abandoned_sets,
            GarbagePhase.EXPIRED_UPLOADS: self._collect_expired_uploads,
            GarbagePhase.UNSETTLED_BLOBS: self._collect_unsettled_blobs,
            GarbagePhase.OBJECTS: self._compare_objects,
            GarbagePhase.MULTIPARTS: self._abort_multiparts,
            GarbagePhase.TOMBSTONES: self._delete_tombstones,
        }

    async def collect(self, tenant_id: str, *, dry_run: bool, record: Record | None = None) -> GarbageCounts:
        """Collect the tenant's garbage and return the counts. A dry run only counts.

        A worker passes `record`: it gets an event for each set and upload that has expired. An
        operator's call of the RPC is an event already.

        Raises NOT_FOUND for a tenant that was not prepared, and S3Failed.
        """
        await self.require_tenant(tenant_id)
        counts = GarbageCounts()
        begin = monotonic_seconds()
        try:
            async with traced("collect_garbage", spawnmesh__tenant__id=tenant_id, spawnmesh__dry_run=dry_run):
                position: GarbagePosition | None = GarbagePosition()
                while position is not None:
                    position = await self.collect_page(
                        tenant_id, position, counts, dry_run=dry_run, record=record
                    )
        except Exception as error:
            if not dry_run:
                self._metrics.record_failed(error, monotonic_seconds() - begin)
            raise
        if not dry_run:
            self._metrics.record_collected(monotonic_seconds() - begin)
        return counts

    async def require_tenant(self, tenant_id: str) -> None:
        """Raise NOT_FOUND for a tenant that was not prepared, or that is purged."""
        async with self._database.transaction(tenant_id) as connection:
            tenant = await tenants.get_tenant(connection, tenant_id)
        if tenant is None:
            raise not_found("tenant", tenant_id)

    async def collect_page(
        self,
        tenant_id: str,
        position: GarbagePosition,
        counts: GarbageCounts,
        *,
        dry_run: bool,
        record: Record | None = None,
    ) -> GarbagePosition | None:
        """Collect one page of the tenant's garbage, add to the counts of the pages before it, and
        return the position of the next page; None at the end.

        Raises S3Failed.
        """
        found = GarbageCounts()
        page = _GarbagePage(tenant_id, position.after, found, dry_run, _Expiry(tenant_id, record))
        try:
            after = await self._phases[position.phase](page)
            following = position.behind(after)
        except BucketMissing:
            log.error("bucket_missing", tenant=tenant_id)
            following = GarbagePosition(GarbagePhase.TOMBSTONES)
        finally:
            counts.add(found)
            if not dry_run:
                self._metrics.record_found(found)
        if following is None:
            log.info("garbage_collected", tenant=tenant_id, dry_run=dry_run, **_nonzero(counts))
        return following

    async def _collect_unremoved_sets(self, page: _GarbagePage) -> tuple[str, ...] | None:
        set_ids = await self._rows(page, garbage.unremoved_sets, self._ages.grace_seconds)
        page.counts.unremoved_set_count += len(set_ids)
        for set_id in () if page.dry_run else set_ids:
            with _counting_refusals(page):
                await self._releaser.release_set(page.tenant_id, set_id)
        return self._last(set_ids)

    async def _collect_outlived_sets(self, page: _GarbagePage) -> tuple[str, ...] | None:
        set_ids = await self._rows(page, garbage.outlived_sets, self._ages.grace_seconds)
        page.counts.expired_set_count += len(set_ids)
        for set_id in () if page.dry_run else set_ids:
            with _counting_refusals(page):
                await self._releaser.release_set(page.tenant_id, set_id)
                page.expiry.report("set_id", set_id)
        return self._last(set_ids)

    async def _collect_abandoned_sets(self, page: _GarbagePage) -> tuple[str, ...] | None:
        age_seconds = self._ages.staged_seconds
        set_ids = await self._rows(page, garbage.abandoned_sets, age_seconds)
        page.counts.expired_set_count += len(set_ids)
        if set_ids:
            log.warning("sets_abandoned", tenant=page.tenant_id, set_ids=set_ids)
        for set_id in () if page.dry_run else set_ids:
            with _counting_refusals(page):
                await self._releaser.release_staged_set(page.tenant_id, set_id, age_seconds)
                page.expiry.report("set_id", set_id)
        return self._last(set_ids)

    async def _collect_expired_uploads(self, page: _GarbagePage) -> tuple[str, ...] | None:
        row_ids = await self._rows(page, garbage.expired_uploads, 0)
        page.counts.expired_upload_count += len(row_ids)
        for row_id in () if page.dry_run else row_ids:
            with _counting_refusals(page):
                await self._upload_remover.remove_expired(page.tenant_id, row_id)
                page.expiry.report("row_id", row_id)
        return self._last(row_ids)

    async def _collect_unsettled_blobs(self, page: _GarbagePage) -> tuple[str, ...] | None:
        hashes = await self._rows(page, garbage.unsettled_blobs, self._ages.grace_seconds)
        page.counts.unsettled_blob_count += len(hashes)
        if hashes and not page.dry_run:
            async with self._database.transaction(page.tenant_id) as connection:
                await blob_rows.mark_unreferenced_blobs(connection, page.tenant_id, hashes)
            with _counting_refusals(page):
                await self._releaser.delete_marked_blobs(page.tenant_id, hashes)
        return self._last(hashes)

    async def _rows(self, page: _GarbagePage, query: RowsQuery, age_seconds: int) -> list[str]:
        keys = KeyPage(page.after[0] if page.after else "", self._page_rows)
        async with self._database.transaction(page.tenant_id) as connection:
            return await query(connection, page.tenant_id, keys, age_seconds)

    def _last(self, keys: list[str]) -> tuple[str, ...] | None:
        """Return the last key of a full page; None if no other page follows."""
        return (keys[-1],) if len(keys) == self._page_rows else None

    async def _delete_tombstones(self, page: _GarbagePage) -> tuple[str, ...] | None:
        after = BEFORE_ALL_TOMBSTONES
        if page.after:
            set_id, state_time = page.after
            after = Tombstone(set_id, datetime.fromisoformat(state_time))
        async with self._database.transaction(page.tenant_id) as connection:
            found = await garbage.old_tombstones(
                connection, page.tenant_id, after, self._page_rows, self._ages.tombstone_seconds
            )
            if found and not page.dry_run:
                await garbage.delete_tombstones(connection, page.tenant_id, after, found)
        page.counts.forgotten_set_count += sum(not tombstone.has_files for tombstone in found)
        if len(found) < self._page_rows:
            return None
        return found[-1].set_id, found[-1].state_time.isoformat()

    async def _compare_objects(self, page: _GarbagePage) -> tuple[str, ...] | None:
        """Compare objects with rows, up to a full page of either of them.

        It reads the rows after the objects: the row of an object that was stored in between is
        found, and that of a removed one is gone. After a loss there are more rows than objects.
        """
        tenant_id = page.tenant_id
        after = page.after[0] if page.after else ""
        entries = await self._multiparts.list_objects(tenant_id, _PREFIX, after, self._page_rows)
        until = None if len(entries) < self._page_rows else entries[-1].key
        async with self._database.transaction(tenant_id) as connection:
            rows = KeyPage(after, self._page_rows)
            blobs = await garbage.blobs_between(connection, tenant_id, rows, until)
            until = until if len(blobs) < self._page_rows else blobs[-1].key
            expected = await garbage.upload_keys_between(connection, tenant_id, after, until)
        among = [entry for entry in entries if until is None or entry.key <= until]
        page.counts.seen_object_count += len(among)
        orphaned_before = self._clock() - timedelta(seconds=self._ages.grace_seconds)
        await self._repair(page, compare(among, blobs, expected, orphaned_before))
        return None if until is None else (until,)

    async def _repair(self, page: _GarbagePage, differences: Differences) -> None:
        tenant_id, counts, dry_run = page.tenant_id, page.counts, page.dry_run
        counts.orphan_object_count += len(differences.orphan_keys)
        if differences.orphan_keys and not dry_run:
            with _counting_refusals(page):
                await self._releaser.delete_orphans(tenant_id, differences.orphan_keys)
        for blob in (*differences.missing, *differences.damaged):
            size_bytes = await self._objects.size_of(tenant_id, blob.key)
            if size_bytes == blob.size_bytes or not await self._has_row(tenant_id, blob):
                continue
            if size_bytes is None:
                counts.missing_object_count += await self._report("object_missing", tenant_id, blob)
            else:
                counts.damaged_object_count += await self._report("object_size_differs", tenant_id, blob)
            if not dry_run:
                await self._mark_lost(tenant_id, blob)
        for blob in () if dry_run else differences.found_again:
            async with self._database.transaction(tenant_id) as connection:
                await blob_rows.mark_found(connection, tenant_id, blob)

    async def _has_row(self, tenant_id: str, blob: BlobEntry) -> bool:
        """Return whether the blob's row still names this object."""
        async with self._database.transaction(tenant_id) as connection:
            return await blob_rows.get_object_key(connection, tenant_id, blob.sha256) == blob.key

    async def _mark_lost(self, tenant_id: str, blob: BlobEntry) -> None:
        async with self._database.transaction(tenant_id) as connection:
            await blob_rows.mark_lost(connection, tenant_id, blob)
        async with self._database.transaction(tenant_id) as connection:
            await uploads.delete_lost_uploads(connection, tenant_id, blob.sha256)

    async def _report(self, event: str, tenant_id: str, blob: BlobEntry) -> bool:
        """Log the blob and return whether it was logged.

        A LOST blob is logged while a set has it.
        """
        async with self._database.transaction(tenant_id) as connection:
            set_ids = await garbage.stored_sets_of(connection, tenant_id, blob.sha256)
        if not blob.is_stored and not set_ids:
            return False
        log.error(event, tenant=tenant_id, sha256=blob.sha256, object_key=blob.key, set_ids=set_ids)
        return True

    async def _abort_multiparts(self, page: _GarbagePage) -> tuple[str, ...] | None:
        begun_before = self._clock() - timedelta(seconds=self._ages.grace_seconds)
        after = MultipartEntry(page.after[0], page.after[1], begun_before) if page.after else None
        entries = await self._multiparts.list_unfinished(page.tenant_id, after, self._page_rows)
        async with self._database.transaction(page.tenant_id) as connection:
            known = await garbage.open_multiparts(connection, page.tenant_id)
        for entry in entries:
            if entry.multipart_id in known or entry.begin_time >= begun_before:
                continue
            page.counts.orphan_multipart_count += 1
            if not page.dry_run:
                with _counting_refusals(page):
                    await self._multiparts.abort(page.tenant_id, entry.key, entry.multipart_id)
        if len(entries) < self._page_rows:
            return None
        return entries[-1].key, entries[-1].multipart_id


@contextmanager
def _counting_refusals(page: _GarbagePage) -> Iterator[None]:
    """Count and log deletions that S3 refuses in the block, and continue behind it."""
    try:
        yield
    except DeletionsRefused as refused:
        page.counts.refused_deletion_count += len(refused.keys)
        log.error("deletions_refused", tenant=page.tenant_id, object_keys=sorted(refused.keys))


def _nonzero(counts: GarbageCounts) -> dict[str, int]:
    return {name: value for name in counts.__slots__ if (value := getattr(counts, name))}
