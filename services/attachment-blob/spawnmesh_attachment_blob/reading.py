"""Reads sets and the bytes of their files."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.domain.sets import AttachmentSet, StoredFile, require_readable, require_visible
from spawnmesh_attachment_blob.objects import ObjectMissing, ObjectStore, stored_hash_differs


class Reading:
    """What readers may see. `session_id` is set for a reader who may see that session's sets alone."""

    def __init__(self, database: Database, objects: ObjectStore) -> None:
        self._database = database
        self._objects = objects

    async def get(self, tenant_id: str, set_id: str, session_id: str | None) -> AttachmentSet:
        """The set. Raises NOT_FOUND."""
        async with self._database.transaction(tenant_id) as connection:
            return require_visible(await store.get_set(connection, tenant_id, set_id), set_id, session_id)

    async def read(self, tenant_id: str, set_id: str, name: str, session_id: str | None) -> AsyncGenerator[bytes, None]:
        """The bytes of a file in pieces; the last piece comes only after the hash of all was found right, one empty piece for an empty file.

        Raises NOT_FOUND, ATTACHMENT_SET_STATE, STORED_HASH_DIFFERS and S3Failed.
        """
        file = require_readable(await self.get(tenant_id, set_id, session_id), name)
        try:
            async with aclosing(self._verified(tenant_id, file)) as pieces:
                async for piece in pieces:
                    yield piece
        except ObjectMissing:
            require_readable(
                await self.get(tenant_id, set_id, session_id), name
            )  # It may have been released meanwhile.
            raise stored_hash_differs(file.sha256) from None

    async def _verified(self, tenant_id: str, file: StoredFile) -> AsyncGenerator[bytes, None]:
        async with self._objects.open(tenant_id, file.sha256) as body:
            held = await body.next_piece()
            read_bytes = len(held)
            while read_bytes <= file.size_bytes and (piece := await body.next_piece()):
                yield held
                held = piece
                read_bytes += len(piece)
            if read_bytes != file.size_bytes or body.sha256 != file.sha256:
                raise stored_hash_differs(file.sha256)
            yield held
