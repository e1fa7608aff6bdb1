"""Takes uploads away, with what they had stored."""

from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob import garbage_store, upload_store
from spawnmesh_attachment_blob.domain.uploads import Upload
from spawnmesh_attachment_blob.multiparts import Multiparts
from spawnmesh_attachment_blob.objects import ObjectStore
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.upload_store import Leftover


class UploadRemoval:
    """Removes uploads; every step may be repeated, so a removal that was cut off is gone on with by the next one."""

    def __init__(self, database: Database, objects: ObjectStore, multiparts: Multiparts, removal: Removal) -> None:
        self._database = database
        self._objects = objects
        self._multiparts = multiparts
        self._removal = removal

    async def give_up(self, tenant_id: str, upload: Upload) -> bool:
        """Whether the upload is gone now; False where another stream has it, or it is COMPLETE or gone. Raises S3Failed; then it goes later."""
        async with self._database.transaction(tenant_id) as connection:
            leftover = await upload_store.abort(connection, tenant_id, upload)
        if leftover is None:
            return False
        await self._remove(tenant_id, leftover)
        return True

    async def remove_expired(self, tenant_id: str, row_id: str) -> bool:
        """Whether the upload of that row was there and is gone now, because its time is over.

        First nobody may write to it, then its bytes go, then its row. Raises S3Failed; then a repeat goes on.
        """
        async with self._database.transaction(tenant_id) as connection:
            leftover = await upload_store.abort_expired(connection, tenant_id, row_id)
        if leftover is None:
            return await self._forget_expired(tenant_id, row_id)
        await self._remove(tenant_id, leftover)
        return True

    async def _remove(self, tenant_id: str, leftover: Leftover) -> None:
        if leftover.multipart_id:
            await self._multiparts.abort(tenant_id, leftover.object_key, leftover.multipart_id)
        await self._objects.delete_all(tenant_id, [leftover.object_key])
        async with self._database.transaction(tenant_id) as connection:
            await upload_store.forget(connection, tenant_id, leftover.row_id)

    async def _forget_expired(self, tenant_id: str, row_id: str) -> bool:
        async with self._database.transaction(tenant_id) as connection:
            sha256 = await upload_store.forget_expired(connection, tenant_id, row_id)
            if sha256 is None:
                return False
            await garbage_store.condemn_blobs(connection, tenant_id, [sha256])
        await self._removal.remove_condemned(tenant_id, [sha256])
        return True
