"""Compares a tenant's bucket with its rows, in both directions, and repairs interrupted work.

The rows that record unfinished work come first, then the bucket. All work goes in pages. Leftovers
younger than the grace period are left, because their call may still run.

A row whose object is missing or has another size is never removed: it is the only record of the
lost file. It is marked LOST. A call that sends the bytes again repairs all sets that refer to
them. An object that S3 refuses to delete is counted, logged and left to the next collection; it
delays nothing else.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta

import structlog
from spawnmesh_core.audit_event import Record, work_event
from spawnmesh_core.clock import Clock, monotonic_seconds, utc_now
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.telemetry import traced

from spawnmesh_attachment_blob.clients.multiparts import BucketMissing, MultipartEntry, Multiparts
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import DeletionsRefused
from spawnmesh_attachment_blob.domain.comparison import BlobEntry, Differences, ObjectEntry, compare
from spawnmesh_attachment_blob.domain.garbage import Ages, GarbageCounts
from spawnmesh_attachment_blob.operations.garbage_metrics import GarbageMetrics
from spawnmesh_attachment_blob.operations.releaser import Releaser
from spawnmesh_attachment_blob.operations.upload_remover import UploadRemover
from spawnmesh_attachment_blob.store import blobs as blob_rows
from spawnmesh_attachment_blob.store import garbage, tenants, uploads
from spawnmesh_attachment_blob.store.garbage import BEFORE_ALL_TOMBSTONES, KeyPage

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

    async def collect(self, tenant_id: str, *, dry_run: bool, record: Record | None = None) -> GarbageCounts:
        """Collect the tenant's garbage and return the counts. A dry run only counts.

        A worker passes `record`: it gets an event for each set and upload that has expired. An
        operator's call of the RPC is an event already.

        Raises NOT_FOUND for a tenant that was not prepared, and S3Failed.
        """
        async with self._database.transaction(tenant_id) as connection:
            tenant = await tenants.get_tenant(connection, tenant_id)
        if tenant is None:
            raise not_found("tenant", tenant_id)
        counts = GarbageCounts()
        begin = monotonic_seconds()
        try:
            await self._collect(tenant_id, counts, _Expiry(tenant_id, record), dry_run=dry_run)
        except Exception as error:
            if not dry_run:
                self._metrics.record_failed(error, monotonic_seconds() - begin)
            raise
        if not dry_run:
            self._metrics.record_collected(counts, monotonic_seconds() - begin)
        log.info("garbage_collected", tenant=tenant_id, dry_run=dry_run, **_nonzero(counts))
        return counts

    async def _collect(
        self, tenant_id: str, counts: GarbageCounts, expiry: _Expiry, *, dry_run: bool
    ) -> None:
        async with traced("collect_garbage", spawnmesh__tenant__id=tenant_id, spawnmesh__dry_run=dry_run):
            await self._collect_rows(tenant_id, counts, expiry, dry_run=dry_run)
            try:
                await self._compare_objects(tenant_id, counts, dry_run=dry_run)
                await self._abort_multiparts(tenant_id, counts, dry_run=dry_run)
            except BucketMissing:
                log.error("bucket_missing", tenant=tenant_id)
            await self._delete_tombstones(tenant_id, counts, dry_run=dry_run)

    async def _collect_rows(
        self, tenant_id: str, counts: GarbageCounts, expiry: _Expiry, *, dry_run: bool
    ) -> None:
        grace = self._ages.grace_seconds
        async with aclosing(self._pages(tenant_id, garbage.unremoved_sets, grace)) as pages:
            async for set_ids in pages:
                counts.unremoved_set_count += len(set_ids)
                await self._release_sets(tenant_id, () if dry_run else set_ids, counts)
        async with aclosing(self._pages(tenant_id, garbage.outlived_sets, grace)) as pages:
            async for set_ids in pages:
                counts.expired_set_count += len(set_ids)
                await self._release_sets(tenant_id, () if dry_run else set_ids, counts, expiry)
        staged_seconds = self._ages.staged_seconds
        async with aclosing(self._pages(tenant_id, garbage.abandoned_sets, staged_seconds)) as pages:
            async for set_ids in pages:
                counts.expired_set_count += len(set_ids)
                log.warning("sets_abandoned", tenant=tenant_id, set_ids=set_ids)
                for set_id in () if dry_run else set_ids:
                    with _counting_refusals(tenant_id, counts):
                        await self._releaser.release_staged_set(tenant_id, set_id, staged_seconds)
                        expiry.report("set_id", set_id)
        async with aclosing(self._pages(tenant_id, garbage.expired_uploads, 0)) as pages:
            async for row_ids in pages:
                counts.expired_upload_count += len(row_ids)
                for row_id in () if dry_run else row_ids:
                    with _counting_refusals(tenant_id, counts):
                        await self._upload_remover.remove_expired(tenant_id, row_id)
                        expiry.report("row_id", row_id)
        async with aclosing(self._pages(tenant_id, garbage.unsettled_blobs, grace)) as pages:
            async for hashes in pages:
                counts.unsettled_blob_count += len(hashes)
                if not dry_run:
                    async with self._database.transaction(tenant_id) as connection:
                        await blob_rows.mark_unreferenced_blobs(connection, tenant_id, hashes)
                    with _counting_refusals(tenant_id, counts):
                        await self._releaser.delete_marked_blobs(tenant_id, hashes)

    async def _release_sets(
        self,
        tenant_id: str,
        set_ids: tuple[()] | list[str],
        counts: GarbageCounts,
        expiry: _Expiry | None = None,
    ) -> None:
        for set_id in set_ids:
            with _counting_refusals(tenant_id, counts):
                await self._releaser.release_set(tenant_id, set_id)
                if expiry is not None:
                    expiry.report("set_id", set_id)

    async def _pages(
        self, tenant_id: str, query: RowsQuery, age_seconds: int
    ) -> AsyncGenerator[list[str], None]:
        after = ""
        while True:
            async with self._database.transaction(tenant_id) as connection:
                page = await query(connection, tenant_id, KeyPage(after, self._page_rows), age_seconds)
            if page:
                yield page
            if len(page) < self._page_rows:
                return
            after = page[-1]

    async def _delete_tombstones(self, tenant_id: str, counts: GarbageCounts, *, dry_run: bool) -> None:
        after, age_seconds = BEFORE_ALL_TOMBSTONES, self._ages.tombstone_seconds
        while True:
            async with self._database.transaction(tenant_id) as connection:
                page = await garbage.old_tombstones(
                    connection, tenant_id, after, self._page_rows, age_seconds
                )
                if page and not dry_run:
                    await garbage.delete_tombstones(connection, tenant_id, after, page)
            counts.forgotten_set_count += sum(not tombstone.has_files for tombstone in page)
            if len(page) < self._page_rows:
                return
            after = page[-1]

    async def _compare_objects(self, tenant_id: str, counts: GarbageCounts, *, dry_run: bool) -> None:
        """Compare all objects with rows.

        It reads the rows after the objects: the row of an object that was stored in between is
        found, and that of a removed one is gone.
        """
        after = ""
        while True:
            entries = await self._multiparts.list_objects(tenant_id, _PREFIX, after, self._page_rows)
            is_last = len(entries) < self._page_rows
            until = None if is_last else entries[-1].key
            await self._compare_page(tenant_id, entries, after, until, counts, dry_run=dry_run)
            if until is None:
                return
            after = until

    async def _compare_page(
        self,
        tenant_id: str,
        entries: list[ObjectEntry],
        after: str,
        until: str | None,
        counts: GarbageCounts,
        *,
        dry_run: bool,
    ) -> None:
        """Compare a page of objects with pages of rows.

        After a loss there are more rows than objects.
        """
        counts.seen_object_count += len(entries)
        while True:
            async with self._database.transaction(tenant_id) as connection:
                page = KeyPage(after, self._page_rows)
                blobs = await garbage.blobs_between(connection, tenant_id, page, until)
                rows_until = until if len(blobs) < self._page_rows else blobs[-1].key
                expected = await garbage.upload_keys_between(connection, tenant_id, after, rows_until)
            among = [
                entry
                for entry in entries
                if entry.key > after and (rows_until is None or entry.key <= rows_until)
            ]
            orphaned_before = self._clock() - timedelta(seconds=self._ages.grace_seconds)
            await self._repair(
                tenant_id, compare(among, blobs, expected, orphaned_before), counts, dry_run=dry_run
            )
            if rows_until is None or rows_until == until:
                return
            after = rows_until

    async def _repair(
        self, tenant_id: str, differences: Differences, counts: GarbageCounts, *, dry_run: bool
    ) -> None:
        counts.orphan_object_count += len(differences.orphan_keys)
        if differences.orphan_keys and not dry_run:
            with _counting_refusals(tenant_id, counts):
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

    async def _abort_multiparts(self, tenant_id: str, counts: GarbageCounts, *, dry_run: bool) -> None:
        begun_before = self._clock() - timedelta(seconds=self._ages.grace_seconds)
        after: MultipartEntry | None = None
        while True:
            entries = await self._multiparts.list_unfinished(tenant_id, after, self._page_rows)
            async with self._database.transaction(tenant_id) as connection:
                known = await garbage.open_multiparts(connection, tenant_id)
            for entry in entries:
                if entry.multipart_id in known or entry.begin_time >= begun_before:
                    continue
                counts.orphan_multipart_count += 1
                if not dry_run:
                    with _counting_refusals(tenant_id, counts):
                        await self._multiparts.abort(tenant_id, entry.key, entry.multipart_id)
            if len(entries) < self._page_rows:
                return
            after = entries[-1]


@contextmanager
def _counting_refusals(tenant_id: str, counts: GarbageCounts) -> Iterator[None]:
    """Count and log deletions that S3 refuses in the block, and continue behind it."""
    try:
        yield
    except DeletionsRefused as refused:
        counts.refused_deletion_count += len(refused.keys)
        log.error("deletions_refused", tenant=tenant_id, object_keys=sorted(refused.keys))


def _nonzero(counts: GarbageCounts) -> dict[str, int]:
    return {name: value for name in counts.__slots__ if (value := getattr(counts, name))}
