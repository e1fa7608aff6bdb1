"""Reads sets and the bytes of their files."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime

from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.admission import Admission, Bounds
from spawnmesh_attachment_blob.domain.ranges import ByteRange, within_file
from spawnmesh_attachment_blob.domain.sets import AttachmentSet, StoredFile, require_readable, require_visible
from spawnmesh_attachment_blob.errors import urls_disabled
from spawnmesh_attachment_blob.objects import ObjectMissing, ObjectStore, stored_hash_differs
from spawnmesh_attachment_blob.pace import reader_pace

_WAIT_SECONDS = 15.0  # Those who call for a payload wait for 20.
_AGAIN_SECONDS = 5.0
_WAITING = 1024
_ALL_TAKEN = "as many files are read as may be at the same time; call again later"


class Reading:
    """What readers may see. `session_id` is set for a reader who may see that session's sets alone."""

    def __init__(self, database: Database, objects: ObjectStore, *, max_streams: int, idle_seconds: float) -> None:
        self._database = database
        self._objects = objects
        self._idle_seconds = idle_seconds
        self._places = Admission(Bounds("reads", _ALL_TAKEN, max_streams, _WAITING, _WAIT_SECONDS, _AGAIN_SECONDS))

    async def get(self, tenant_id: str, set_id: str, session_id: str | None) -> AttachmentSet:
        """The set. Raises NOT_FOUND."""
        async with self._database.transaction(tenant_id) as connection:
            return require_visible(await store.get_set(connection, tenant_id, set_id), set_id, session_id)

    async def list_sets(
        self, tenant_id: str, session_id: str, before_set_id: str, limit: int
    ) -> Sequence[AttachmentSet]:
        """Up to `limit` sets, of a session or of all, newest first, with ids below `before_set_id`; empty texts leave a condition out."""
        async with self._database.transaction(tenant_id) as connection:
            return await store.list_sets(connection, tenant_id, session_id, before_set_id, limit)

    async def download_url(self, tenant_id: str, set_id: str, name: str) -> tuple[str, datetime]:
        """A URL for a file and when it stops working.

        Raises DOWNLOAD_URLS_DISABLED, NOT_FOUND, ATTACHMENT_SET_STATE, STORED_HASH_DIFFERS where there is no object, and S3Failed.
        """
        async with self._database.transaction(tenant_id) as connection:
            tenant = await store.get_tenant(connection, tenant_id)
        lifetime_seconds = tenant.policy.download_url_seconds if tenant else 0
        if lifetime_seconds == 0:
            raise urls_disabled()
        file, key = await self._find(tenant_id, set_id, name, None)
        if await self._objects.size_of(tenant_id, key) is None:
            await self._find(tenant_id, set_id, name, None)  # It may have been released meanwhile.
            raise stored_hash_differs(file.sha256)
        return await self._objects.download_url(tenant_id, key, name, lifetime_seconds)

    async def read(
        self, tenant_id: str, set_id: str, name: str, session_id: str | None, wanted: ByteRange
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a range of a file in pieces, one empty piece for an empty range.

        Where the range is the whole file, the last piece comes only after the hash of all was found right; else the length alone is sure.
        Raises NOT_FOUND, ATTACHMENT_SET_STATE, STORED_HASH_DIFFERS, S3Failed, and INVALID_REQUEST for a range that begins behind the end;
        POOL_EXHAUSTED where no place was free for long, and DEADLINE_EXCEEDED for a reader that does not take what comes, or slowly.
        """
        file, key = await self._find(tenant_id, set_id, name, session_id)
        span = within_file(wanted, file.size_bytes)
        pace = reader_pace(self._idle_seconds)
        try:
            async with self._places.taken(tenant_id), aclosing(self._verified(tenant_id, key, file, span)) as pieces:
                async for piece in pieces:
                    async with pace:
                        yield piece
                    pace.came(len(piece))
        except ObjectMissing:
            await self._find(tenant_id, set_id, name, session_id)  # It may have been released meanwhile.
            raise stored_hash_differs(file.sha256) from None

    async def _find(self, tenant_id: str, set_id: str, name: str, session_id: str | None) -> tuple[StoredFile, str]:
        """The file and where its bytes are."""
        async with self._database.transaction(tenant_id) as connection:
            found = require_visible(await store.get_set(connection, tenant_id, set_id), set_id, session_id)
            file = require_readable(found, name)
            key = await store.get_object_key(connection, tenant_id, file.sha256)
        if key is None:  # Released between the two statements, or a row was lost.
            raise stored_hash_differs(file.sha256)
        return file, key

    async def _verified(
        self, tenant_id: str, key: str, file: StoredFile, span: ByteRange
    ) -> AsyncGenerator[bytes, None]:
        if span.length == 0 and file.size_bytes > 0:  # S3 has no empty ranges.
            yield b""
            return
        async with self._objects.open(
            tenant_id, key, span.offset, 0 if span.covers(file.size_bytes) else span.length
        ) as body:
            held = await body.next_piece()
            read_bytes = len(held)
            while read_bytes <= span.length and (piece := await body.next_piece()):
                yield held
                held = piece
                read_bytes += len(piece)
            is_wrong = span.covers(file.size_bytes) and body.sha256 != file.sha256
            if read_bytes != span.length or is_wrong:
                raise stored_hash_differs(file.sha256)
            yield held
