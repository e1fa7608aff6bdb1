"""The bucket of each tenant: its creation, its removal in pages, and what is in it."""

import asyncio

from spawnmesh_postgres.tenant_participant import TenantObjects

from spawnmesh_attachment_blob.clients.multiparts import BucketMissing, Multiparts
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import S3Calls
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets

_PAGE = 500
_MULTIPARTS_PAGE = 100  # Each takes a call to S3 while the purge is locked.
_MAX_BUCKETS = 2  # Each holds a database connection while S3 works.


class TenantBucket(TenantObjects):
    """Creates, empties and counts tenants' buckets. Each method raises S3Failed."""

    def __init__(
        self, objects: ObjectStore, multiparts: Multiparts, buckets: TenantBuckets, calls: S3Calls
    ) -> None:
        self.limiter = asyncio.Semaphore(_MAX_BUCKETS)
        self._objects = objects
        self._multiparts = multiparts
        self._buckets = buckets
        self._calls = calls

    async def create_container(self, tenant_id: str) -> None:
        """Create the tenant's bucket unless it exists."""
        await self._calls.call(self._buckets.make_bucket, tenant_id)

    async def remove_page(self, tenant_id: str) -> int | None:
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

    async def count(self, tenant_id: str, limit: int) -> int | None:
        """Return the number of objects, `limit` (at most 1000) at most; None without a bucket."""
        try:
            return len(await self._multiparts.list_objects(tenant_id, "", "", limit))
        except BucketMissing:
            return None
