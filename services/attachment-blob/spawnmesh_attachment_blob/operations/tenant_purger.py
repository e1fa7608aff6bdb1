"""Removes everything that a tenant stored."""

import asyncio
from dataclasses import dataclass

from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob.clients.multiparts import BucketMissing, Multiparts
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import S3Calls
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.store import purge

_PAGE = 500
_MULTIPARTS_PAGE = 100  # Each takes a call to S3 while the tenant is locked.
_MAX_BUCKETS = 2  # Each holds a database connection while S3 works.


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """The deletions of one call. `done` if nothing is left."""

    done: bool
    objects: int
    rows: int


class TenantPurger:
    """Removes buckets and rows.

    A purge can be resumed: the bucket goes first, the tenant's row last.
    """

    def __init__(
        self,
        database: Database,
        objects: ObjectStore,
        multiparts: Multiparts,
        buckets: TenantBuckets,
        calls: S3Calls,
        *,
        max_pages: int = 20,
    ) -> None:
        self._database = database
        self._objects = objects
        self._multiparts = multiparts
        self._buckets = buckets
        self._calls = calls
        self._max_pages = max_pages
        self._bucket_limiter = asyncio.Semaphore(_MAX_BUCKETS)

    async def purge(self, tenant_id: str, settings_version: int = 0) -> PurgeResult:
        """Remove up to `max_pages` pages of objects or rows. Nothing new is stored from now on.

        `done` once it found nothing left. It removes nothing of a tenant with newer settings than
        this version, also if that tenant is prepared during the call. Version 0 matches every
        tenant. Raises S3Failed.
        """
        async with self._database.transaction(tenant_id) as connection:
            await purge.mark_purging(connection, tenant_id, settings_version)
        objects = rows = 0
        has_bucket = True
        for _ in range(self._max_pages):
            # Do not look for a removed bucket again: that takes longer than a page of rows.
            if has_bucket:
                # PrepareTenant waits for the page, and creates the bucket for what follows.
                async with self._bucket_limiter, self._database.transaction(tenant_id) as connection:
                    if not await purge.lock_purge(connection, tenant_id, settings_version):
                        return PurgeResult(True, objects, rows)
                    deleted = await self._empty_bucket(tenant_id)
                objects += deleted or 0
                has_bucket = deleted is not None
                if has_bucket:
                    continue
            is_last = False
            async with self._database.transaction(tenant_id) as connection:
                if not await purge.lock_purge(connection, tenant_id, settings_version):
                    return PurgeResult(True, objects, rows)
                gone = await purge.purge_rows(connection, tenant_id, _PAGE)
                if gone == 0:
                    gone = await purge.purge_tenant(connection, tenant_id)
                    is_last = True
            rows += gone
            if is_last:
                return PurgeResult(await self._is_empty(tenant_id), objects, rows)
        return PurgeResult(False, objects, rows)

    async def _is_empty(self, tenant_id: str) -> bool:
        """Return whether nothing is left after the last commit.

        A call may have stored something while the purge began.
        """
        async with self._database.transaction(tenant_id) as connection:
            if await purge.has_rows(connection, tenant_id):
                return False
        try:
            await self._multiparts.list_objects(tenant_id, "", "", 1)
        except BucketMissing:
            return True
        return False

    async def _empty_bucket(self, tenant_id: str) -> int | None:
        """Delete a page of objects and return how many; None if the bucket is removed."""
        try:
            entries = await self._multiparts.list_objects(tenant_id, "", "", _PAGE)
            unfinished = await self._multiparts.list_unfinished(tenant_id, None, _MULTIPARTS_PAGE)
        except BucketMissing:
            return None
        for upload in unfinished:
            await self._multiparts.abort(tenant_id, upload.key, upload.multipart_id)
        await self._objects.delete_all(tenant_id, [entry.key for entry in entries])
        if not entries and not unfinished:
            await self._calls.call(self._buckets.remove_bucket, tenant_id)
            return None
        return len(entries)
