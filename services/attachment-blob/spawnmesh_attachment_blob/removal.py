"""Takes sets away, with the objects that nobody else refers to.

An object is deleted under the lock of its blob's row, after the row was marked DELETING in a transaction of its own. Whoever wants to store
the same bytes waits for that lock and then puts them anew, and nobody takes a marked blob for stored, even if the lock is lost in between.
"""

from spawnmesh_postgres.database import Connection, Database

from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.domain.sets import SetState
from spawnmesh_attachment_blob.objects import ObjectStore
from spawnmesh_attachment_blob.s3_turns import S3Turns
from spawnmesh_attachment_blob.uninterrupted import uninterrupted


class Removal:
    """Releases sets and undoes those that were not finished."""

    def __init__(self, database: Database, objects: ObjectStore, turns: S3Turns) -> None:
        self._database = database
        self._objects = objects
        self._turns = turns

    async def release(self, tenant_id: str, set_id: str) -> int:
        """The set is RELEASED; how many objects were deleted for it now. An unknown set becomes a tombstone.

        Raises S3Failed while objects cannot be deleted: the set is RELEASED by then, and a repeat goes on with the objects.
        """
        async with self._database.transaction(tenant_id) as connection:
            if not await store.release_set(connection, tenant_id, set_id):
                return 0
            await store.condemn_blobs(connection, tenant_id, set_id)
        async with self._turns.taken():
            return await uninterrupted(self._remove_files(tenant_id, set_id))

    async def _remove_files(self, tenant_id: str, set_id: str) -> int:
        async with self._database.transaction(tenant_id) as connection:
            await store.lock_set(connection, tenant_id, set_id)
            count = await self._remove_objects(connection, tenant_id, set_id, frozenset())
            await store.forget_files(connection, tenant_id, set_id)
            return count

    async def undo(self, tenant_id: str, set_id: str, never_sent_hashes: frozenset[str]) -> None:
        """Nothing is left of the set if it is STAGING; any other is left alone. Objects of `never_sent_hashes` are known not to exist.

        For a caller that has a turn and is not interrupted.
        Raises S3Failed while objects cannot be deleted; then the set stays STAGING.
        """
        async with self._database.transaction(tenant_id) as connection:
            if await _is_staging(connection, tenant_id, set_id):
                await store.condemn_blobs(connection, tenant_id, set_id)
        async with self._database.transaction(tenant_id) as connection:
            if await _is_staging(connection, tenant_id, set_id):
                await self._remove_objects(connection, tenant_id, set_id, never_sent_hashes)
                await store.forget_set(connection, tenant_id, set_id)

    async def _remove_objects(
        self, connection: Connection, tenant_id: str, set_id: str, never_sent_hashes: frozenset[str]
    ) -> int:
        condemned = await store.lock_condemned_blobs(connection, tenant_id, set_id)
        await self._objects.delete_all(tenant_id, [sha256 for sha256 in condemned if sha256 not in never_sent_hashes])
        await store.forget_blobs(connection, tenant_id, condemned)
        return len(condemned)


async def _is_staging(connection: Connection, tenant_id: str, set_id: str) -> bool:
    found = await store.lock_set(connection, tenant_id, set_id)
    return found is not None and found.state is SetState.STAGING
