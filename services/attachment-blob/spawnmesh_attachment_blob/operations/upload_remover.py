"""Removes uploads and what they stored in S3."""

from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob.clients.multiparts import Multiparts
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.domain.uploads import Upload
from spawnmesh_attachment_blob.operations.releaser import Releaser
from spawnmesh_attachment_blob.store import blobs, uploads
from spawnmesh_attachment_blob.store.uploads import AbortedUpload


class UploadRemover:
    """Removes uploads.

    Each step can be repeated, so the next removal resumes an interrupted one.
    """

    def __init__(
        self, database: Database, objects: ObjectStore, multiparts: Multiparts, releaser: Releaser
    ) -> None:
        self._database = database
        self._objects = objects
        self._multiparts = multiparts
        self._releaser = releaser

    async def discard(self, tenant_id: str, upload: Upload) -> bool:
        """Remove the upload of a stream that gives up, and return whether it was removed.

        Returns False if another stream took it over, or if it is COMPLETE or gone. After S3Failed
        the garbage collector removes it.
        """
        async with self._database.transaction(tenant_id) as connection:
            aborted = await uploads.abort_upload(connection, tenant_id, upload)
        if aborted is None:
            return False
        await self._remove(tenant_id, aborted)
        return True

    async def remove_expired(self, tenant_id: str, row_id: str) -> bool:
        """Remove the upload if it has expired, and return whether it was removed.

        Refuses its streams first, then deletes its bytes, then its row. After S3Failed a repeat
        resumes.
        """
        async with self._database.transaction(tenant_id) as connection:
            aborted = await uploads.abort_expired_upload(connection, tenant_id, row_id)
        if aborted is None:
            return await self._remove_expired_complete(tenant_id, row_id)
        await self._remove(tenant_id, aborted)
        return True

    async def _remove(self, tenant_id: str, aborted: AbortedUpload) -> None:
        if aborted.multipart_id:
            await self._multiparts.abort(tenant_id, aborted.object_key, aborted.multipart_id)
        await self._objects.delete_all(tenant_id, [aborted.object_key])
        async with self._database.transaction(tenant_id) as connection:
            await uploads.delete_aborted_upload(connection, tenant_id, aborted.row_id)

    async def _remove_expired_complete(self, tenant_id: str, row_id: str) -> bool:
        async with self._database.transaction(tenant_id) as connection:
            sha256 = await uploads.delete_expired_upload(connection, tenant_id, row_id)
            if sha256 is None:
                return False
            await blobs.mark_unreferenced_blobs(connection, tenant_id, [sha256])
        await self._releaser.delete_marked_blobs(tenant_id, [sha256])
        return True
