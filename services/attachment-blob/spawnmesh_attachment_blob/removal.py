"""Takes sets away, with the objects that nobody else refers to.

An object is deleted under the lock of its blob's row, after the row was marked DELETING in a transaction of its own. Whoever wants to store
the same bytes waits for that lock and then puts them anew, and nobody takes a marked blob for stored, even if the lock is lost in between.
"""

from collections.abc import Collection, Sequence

from spawnmesh_core.cancellation import uninterrupted
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_attachment_blob import garbage_store, store
from spawnmesh_attachment_blob.domain.comparison import hash_of_key
from spawnmesh_attachment_blob.objects import ObjectStore
from spawnmesh_attachment_blob.s3_calls import DeletionsRefused
from spawnmesh_attachment_blob.s3_turns import S3Turns
from spawnmesh_attachment_blob.store import CondemnedBlob


class Removal:
    """Releases sets, and takes away what nobody refers to."""

    def __init__(self, database: Database, objects: ObjectStore, turns: S3Turns) -> None:
        self._database = database
        self._objects = objects
        self._turns = turns

    async def release(self, tenant_id: str, set_id: str) -> int:
        """The set is RELEASED; how many objects were deleted for it now. An unknown set becomes a tombstone.

        Raises S3Failed while objects cannot be deleted: the set is RELEASED by then, and a repeat goes on with the objects.
        """
        async with (
            self._turns.taken()
        ):  # Before the first lock, too: who stages the same bytes may hold it while it waits for S3.
            async with self._database.transaction(tenant_id) as connection:
                if not await store.release_set(connection, tenant_id, set_id):
                    return 0
                keys = await store.condemn_blobs_of_set(connection, tenant_id, set_id)
            return await uninterrupted(self._remove_files(tenant_id, set_id, keys))

    async def release_staged(self, tenant_id: str, set_id: str, age_seconds: int) -> int:
        """Like `release`, for a set that is STAGED for longer than this; one that is anything else, by now, is left alone."""
        async with self._turns.taken():
            async with self._database.transaction(tenant_id) as connection:
                if not await store.release_staged(connection, tenant_id, set_id, age_seconds):
                    return 0
                keys = await store.condemn_blobs_of_set(connection, tenant_id, set_id)
            return await uninterrupted(self._remove_files(tenant_id, set_id, keys))

    async def _remove_files(self, tenant_id: str, set_id: str, keys: set[str]) -> int:
        async with self._database.transaction(tenant_id) as connection:
            await store.lock_set(connection, tenant_id, set_id)
            condemned = await store.lock_condemned_blobs_of_set(connection, tenant_id, set_id)
            refused = await self._remove_objects(connection, tenant_id, condemned)
            if refused is None:
                await store.forget_files(connection, tenant_id, set_id)
        put_anew = keys - {blob.object_key for blob in condemned}  # Elsewhere, by who wanted the bytes again meanwhile.
        if put_anew:
            await self.take_back(tenant_id, put_anew)
        if refused is not None:
            raise refused
        return len(condemned)

    async def remove_condemned(self, tenant_id: str, hashes: Sequence[str]) -> int:
        """Those of the blobs that are DELETING are gone, with their objects; how many. Raises S3Failed; then they stay DELETING, but after
        DeletionsRefused those alone that it names.
        """
        async with self._turns.taken():
            return await uninterrupted(self._remove_condemned(tenant_id, hashes))

    async def _remove_condemned(self, tenant_id: str, hashes: Sequence[str]) -> int:
        async with self._database.transaction(tenant_id) as connection:
            condemned = await garbage_store.lock_condemned_blobs(connection, tenant_id, hashes)
            refused = await self._remove_objects(connection, tenant_id, condemned)
        if refused is not None:
            raise refused
        return len(condemned)

    async def _remove_objects(
        self, connection: Connection, tenant_id: str, condemned: Collection[CondemnedBlob]
    ) -> DeletionsRefused | None:
        """Blobs whose objects are gone are forgotten. What S3 refused is to be raised once that is committed."""
        refused = await self._delete(tenant_id, [blob.object_key for blob in condemned])
        kept = frozenset[str]() if refused is None else refused.keys
        gone = [blob.sha256 for blob in condemned if blob.object_key not in kept]
        await store.forget_blobs(connection, tenant_id, gone)
        return refused

    async def _delete(self, tenant_id: str, keys: Collection[str]) -> DeletionsRefused | None:
        try:
            await self._objects.delete_all(tenant_id, keys)
        except DeletionsRefused as refused:
            return refused
        return None

    async def remove_orphans(self, tenant_id: str, keys: Collection[str]) -> int:
        """Objects that no row knows are gone; how many were. One whose bytes somebody is storing right now is left alone. Raises S3Failed."""
        async with self._turns.taken():
            return await uninterrupted(self.take_back(tenant_id, keys))

    async def take_back(self, tenant_id: str, keys: Collection[str]) -> int:
        """Like `remove_orphans`, for a caller that has a turn and is not interrupted."""
        async with self._database.transaction(tenant_id) as connection:
            claimed: set[str] = set()
            orphans = []
            for key in sorted(keys, key=hash_of_key):  # The order in which everybody locks blobs.
                sha256 = hash_of_key(key)
                if sha256 not in claimed and await garbage_store.claim_orphan(connection, tenant_id, sha256, key):
                    claimed.add(sha256)
                # In this order: who was storing the bytes has been waited for, and has a row now.
                if sha256 in claimed or await garbage_store.lock_blob_elsewhere(connection, tenant_id, sha256, key):
                    orphans.append(key)
            refused = await self._delete(tenant_id, orphans)
            await store.forget_blobs(connection, tenant_id, claimed)
        if refused is not None:
            raise refused
        return len(orphans)
