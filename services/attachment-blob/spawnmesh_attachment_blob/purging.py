"""Removes all that a tenant has here."""

import asyncio
from dataclasses import dataclass

from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob import garbage_store
from spawnmesh_attachment_blob.multiparts import BucketMissing, Multiparts
from spawnmesh_attachment_blob.objects import ObjectStore
from spawnmesh_attachment_blob.s3_calls import S3Calls
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets

_PAGE = 500
_UNFINISHED_PAGE = 100  # Each is a call, and the tenant is locked meanwhile.
_BUCKETS_AT_ONCE = 2  # Each has a connection as long as S3 takes, and others want some, too.


@dataclass(frozen=True, slots=True)
class Purged:
    """What one call removed, and whether it was the last of it."""

    done: bool
    objects: int
    rows: int


class Purging:
    """Empties and removes buckets and rows. The order makes it resumable: the bucket goes first, the tenant's own row last."""

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
        self._places = asyncio.Semaphore(_BUCKETS_AT_ONCE)

    async def purge(self, tenant_id: str, settings_version: int = 0) -> Purged:
        """Removes up to `max_pages` pages of objects or rows; `done` once it looked and found nothing. Nothing new is stored for the tenant from
        its start on. Removes nothing of a tenant with settings newer than this version, also where that is made ready meanwhile; 0 is
        whatever tenant there is. Raises S3Failed.
        """
        async with self._database.transaction(tenant_id) as connection:
            await garbage_store.mark_purging(connection, tenant_id, settings_version)
        objects = rows = 0
        has_bucket = True
        for _ in range(self._max_pages):
            if has_bucket:  # Once it is gone, looking for it again would take longer than a page of rows.
                # Whoever makes the tenant ready waits for the page, and has a bucket for what comes after it.
                async with self._places, self._database.transaction(tenant_id) as connection:
                    if not await garbage_store.lock_purge(connection, tenant_id, settings_version):
                        return Purged(True, objects, rows)
                    deleted = await self._empty_bucket(tenant_id)
                objects += deleted or 0
                has_bucket = deleted is not None
                if has_bucket:
                    continue
            is_last = False
            async with self._database.transaction(tenant_id) as connection:
                if not await garbage_store.lock_purge(connection, tenant_id, settings_version):
                    return Purged(True, objects, rows)
                gone = await garbage_store.purge_rows(connection, tenant_id, _PAGE)
                if gone == 0:
                    gone = await garbage_store.purge_tenant(connection, tenant_id)
                    is_last = True
            rows += gone
            if is_last:
                return Purged(await self._nothing_is_left(tenant_id), objects, rows)
        return Purged(False, objects, rows)

    async def _nothing_is_left(self, tenant_id: str) -> bool:
        """Looks once more, now that all is committed: whoever was storing when the purge began may have come back to it in between."""
        async with self._database.transaction(tenant_id) as connection:
            if await garbage_store.has_rows(connection, tenant_id):
                return False
        try:
            await self._multiparts.list_objects(tenant_id, "", "", 1)
        except BucketMissing:
            return True
        return False

    async def _empty_bucket(self, tenant_id: str) -> int | None:
        """How many objects of one page were deleted; None when the bucket does not exist any more."""
        try:
            entries = await self._multiparts.list_objects(tenant_id, "", "", _PAGE)
            unfinished = await self._multiparts.list_unfinished(tenant_id, None, _UNFINISHED_PAGE)
        except BucketMissing:
            return None
        for upload in unfinished:
            await self._multiparts.abort(tenant_id, upload.key, upload.multipart_id)
        await self._objects.delete_all(tenant_id, [entry.key for entry in entries])
        if not entries and not unfinished:
            await self._calls.run(self._buckets.remove_bucket, tenant_id)
            return None
        return len(entries)
