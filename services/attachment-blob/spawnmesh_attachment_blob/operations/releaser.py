"""Releases sets and deletes the objects that have no reference any more.

Deleting an object takes two transactions. The first marks the blob DELETING. The second locks the
blob's row, deletes the object and then the row. A call that wants to store the same bytes waits
for the lock and then puts a new object. No call uses a DELETING blob, even if the lock is lost in
between.
"""

from collections.abc import Collection, Sequence

from spawnmesh_core.cancellation import shield_until_done
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import DeletionsRefused
from spawnmesh_attachment_blob.operations.s3_limiter import S3TransactionLimiter
from spawnmesh_attachment_blob.store import blobs, sets


class Releaser:
    """Releases sets and deletes unreferenced blobs and orphaned objects."""

    def __init__(self, database: Database, objects: ObjectStore, s3_limiter: S3TransactionLimiter) -> None:
        self._database = database
        self._objects = objects
        self._s3_limiter = s3_limiter

    async def release_set(self, tenant_id: str, set_id: str) -> int:
        """Change the set to RELEASED and return how many objects were deleted.

        An unknown set becomes a tombstone. Raises S3Failed if objects cannot be deleted: the set is
        RELEASED by then, and a repeat continues with the objects.
        """
        # Acquire it before the first lock: a call that stages the same bytes may hold a permit and
        # the lock while it waits for S3.
        async with self._s3_limiter.acquire(tenant_id):
            async with self._database.transaction(tenant_id) as connection:
                if not await sets.release_set(connection, tenant_id, set_id):
                    return 0
                keys = await blobs.mark_blobs_of_set(connection, tenant_id, set_id)
            return await shield_until_done(self._delete_files(tenant_id, set_id, keys))

    async def release_staged_set(self, tenant_id: str, set_id: str, age_seconds: int) -> int:
        """Release the set like `release_set` if it is still STAGED, for longer than this."""
        async with self._s3_limiter.acquire(tenant_id):
            async with self._database.transaction(tenant_id) as connection:
                if not await sets.release_staged_set(connection, tenant_id, set_id, age_seconds):
                    return 0
                keys = await blobs.mark_blobs_of_set(connection, tenant_id, set_id)
            return await shield_until_done(self._delete_files(tenant_id, set_id, keys))

    async def _delete_files(self, tenant_id: str, set_id: str, keys: set[str]) -> int:
        async with self._database.transaction(tenant_id) as connection:
            await sets.lock_set(connection, tenant_id, set_id)
            marked = await blobs.lock_marked_blobs_of_set(connection, tenant_id, set_id)
            refused = await self._delete_marked(connection, tenant_id, marked)
            if refused is None:
                await sets.delete_files(connection, tenant_id, set_id)
        # Another call stored these bytes again in the meantime, under another key.
        orphans = keys - {blob.object_key for blob in marked}
        if orphans:
            await self.delete_orphans_unlimited(tenant_id, orphans)
        if refused is not None:
            raise refused
        return len(marked)

    async def delete_marked_blobs(self, tenant_id: str, hashes: Sequence[str]) -> int:
        """Delete those of the blobs that are DELETING, with their objects, and return how many.

        After S3Failed they stay DELETING; after DeletionsRefused only those that it names.
        """
        async with self._s3_limiter.acquire(tenant_id):
            return await shield_until_done(self._delete_marked_blobs(tenant_id, hashes))

    async def _delete_marked_blobs(self, tenant_id: str, hashes: Sequence[str]) -> int:
        async with self._database.transaction(tenant_id) as connection:
            marked = await blobs.lock_marked_blobs(connection, tenant_id, hashes)
            refused = await self._delete_marked(connection, tenant_id, marked)
        if refused is not None:
            raise refused
        return len(marked)

    async def _delete_marked(
        self, connection: Connection, tenant_id: str, marked: Collection[blobs.MarkedBlob]
    ) -> DeletionsRefused | None:
        """Delete the objects and the rows. Return the refusals, to be raised after the commit."""
        refused = await self._delete_objects(tenant_id, [blob.object_key for blob in marked])
        kept = frozenset[str]() if refused is None else refused.keys
        deleted = [blob.sha256 for blob in marked if blob.object_key not in kept]
        await blobs.delete_blobs(connection, tenant_id, deleted)
        return refused

    async def _delete_objects(self, tenant_id: str, keys: Collection[str]) -> DeletionsRefused | None:
        try:
            await self._objects.delete_all(tenant_id, keys)
        except DeletionsRefused as refused:
            return refused
        return None

    async def delete_orphans(self, tenant_id: str, keys: Collection[str]) -> int:
        """Delete the objects without a row, and return how many.

        An object whose bytes another call stores at the moment is left. Raises S3Failed.
        """
        async with self._s3_limiter.acquire(tenant_id):
            return await shield_until_done(self.delete_orphans_unlimited(tenant_id, keys))

    async def delete_orphans_unlimited(self, tenant_id: str, keys: Collection[str]) -> int:
        """Delete like `delete_orphans`, for a caller that holds a permit and is not interrupted."""
        async with self._database.transaction(tenant_id) as connection:
            claimed, orphans = await blobs.claim_orphans(connection, tenant_id, keys)
            refused = await self._delete_objects(tenant_id, orphans)
            await blobs.delete_blobs(connection, tenant_id, claimed)
        if refused is not None:
            raise refused
        return len(orphans)
