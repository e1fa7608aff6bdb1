"""Writes the bytes of an upload to S3, part by part, and creates the object from the parts."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

import structlog
from spawnmesh_core.cancellation import shield_until_done
from spawnmesh_core.errors import MeshError
from spawnmesh_core.redaction_marker import is_marker_content
from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob.clients.multiparts import Multiparts, PartsLost
from spawnmesh_attachment_blob.clients.objects import ObjectMissing, ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import S3Failed
from spawnmesh_attachment_blob.domain.errors import content_is_marker
from spawnmesh_attachment_blob.domain.part_buffer import PartBuffer
from spawnmesh_attachment_blob.domain.uploads import (
    PART_BYTES,
    StoredPart,
    Upload,
    UploadKey,
    hash_differs,
    require_upload,
    taken_over,
)
from spawnmesh_attachment_blob.operations.upload_remover import UploadRemover
from spawnmesh_attachment_blob.store import blobs, uploads, usage

log = structlog.get_logger()

_MARKER_BYTES = 64 * 1024  # No transcript shows a longer marker.


@dataclass(frozen=True, slots=True)
class UploadStorage:
    """The stores and clients that hold uploads."""

    database: Database
    objects: ObjectStore
    multiparts: Multiparts
    remover: UploadRemover
    ttl_seconds: int


@asynccontextmanager
async def open_upload_writer(
    storage: UploadStorage, tenant_id: str, key: UploadKey
) -> AsyncIterator["UploadWriter"]:
    """Take over the upload and write from its durable offset.

    Earlier streams are refused from now on.

    Raises UPLOAD_TAKEN_OVER if the upload accepts no bytes any more.
    """
    async with storage.database.transaction(tenant_id) as connection:
        is_there = await uploads.lock_upload(connection, tenant_id, key)
        if not is_there or not await uploads.take_over_upload(
            connection, tenant_id, key, storage.ttl_seconds
        ):
            raise taken_over(key.upload_id)
        upload = require_upload(await uploads.get_upload(connection, tenant_id, key), key)
        parts = await uploads.list_parts(connection, tenant_id, key)
    async with asyncio.TaskGroup() as tasks:
        yield UploadWriter(storage, tenant_id, upload, parts, tasks)


class UploadWriter:
    """The writer of one stream. It buffers two parts and a chunk."""

    def __init__(
        self,
        storage: UploadStorage,
        tenant_id: str,
        upload: Upload,
        parts: list[StoredPart],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.upload = upload
        self._storage = storage
        self._tenant_id = tenant_id
        self._parts = parts
        self._tasks = tasks
        self._sending: asyncio.Task[None] | None = None
        self._multipart_id = upload.multipart_id
        self._filling = PartBuffer(min(PART_BYTES, upload.spec.size_bytes))
        self._leaving = PartBuffer(0)
        self._digest = hashlib.sha256()
        self.at_bytes = sum(part.size_bytes for part in parts)

    @property
    def _is_only_writer(self) -> bool:
        """True if no other stream ever put a part that could be in this object."""
        return self.upload.generation == 1

    async def write(self, data: bytes) -> bool:
        """Accept the next bytes and return whether they fill a part.

        Waits until the part before that one is durable.
        """
        self.at_bytes += len(data)
        rest = memoryview(data)
        has_filled_part = False
        while rest:
            rest = self._filling.take(rest)
            if self._filling.is_full and self._is_in_parts:
                await self._send()
                has_filled_part = True
        return has_filled_part

    async def flush(self) -> None:
        """Wait until each full part is durable."""
        if self._sending is not None:
            await self._sending

    async def finish(self) -> None:
        """Change the upload to COMPLETE.

        Raises UPLOAD_HASH_DIFFERS, after which the upload is removed, and UPLOAD_TAKEN_OVER.
        """
        is_verified = await self._verify()
        if is_verified and await self._complete_with_stored_blob():
            return
        if self._is_in_parts:
            await self._assemble(is_verified)
        else:
            data = bytes(self._filling.view)
            await self._storage.objects.put(
                self._tenant_id, self.upload.object_key, self.upload.spec.sha256, data
            )
        await self._complete()

    @property
    def _is_in_parts(self) -> bool:
        return self.upload.spec.size_bytes > PART_BYTES

    async def _send(self) -> None:
        await self.flush()
        if self._sending is None:
            self._leaving = PartBuffer(PART_BYTES)
        self._filling, self._leaving = self._leaving, self._filling
        self._filling.clear()
        part = shield_until_done(self._store_part(len(self._parts) + 1, self._leaving.view))
        self._sending = self._tasks.create_task(part)

    async def _store_part(self, number: int, data: memoryview) -> None:
        upload, storage = self.upload, self._storage
        await asyncio.to_thread(self._digest.update, data)
        if not self._multipart_id:
            self._multipart_id = await self._begin_multipart()
        try:
            part = await storage.multiparts.put_part(
                self._tenant_id, upload.object_key, self._multipart_id, number, data
            )
        except PartsLost:  # A lifecycle rule of the bucket may have aborted the multipart upload.
            await self._discard(taken_over(upload.spec.upload_id))
        async with storage.database.transaction(self._tenant_id) as connection:
            if not await uploads.add_part(connection, self._tenant_id, upload, part, storage.ttl_seconds):
                raise taken_over(upload.spec.upload_id)
        self._parts.append(part)

    async def _begin_multipart(self) -> str:
        """Begin a multipart upload and record its id.

        If the process ends in between, the garbage collector finds the multipart upload.
        """
        upload, storage = self.upload, self._storage
        multipart_id = await storage.multiparts.begin(self._tenant_id, upload.object_key)
        async with storage.database.transaction(self._tenant_id) as connection:
            is_ours = await uploads.set_multipart(connection, self._tenant_id, upload, multipart_id)
        if not is_ours:
            await storage.multiparts.abort(self._tenant_id, upload.object_key, multipart_id)
            raise taken_over(upload.spec.upload_id)
        return multipart_id

    async def _verify(self) -> bool:
        """Return whether this stream received all bytes and they have the announced hash.

        Returns False if other streams sent parts, so that only the object can tell. Raises for
        other bytes.
        """
        spec = self.upload.spec
        if self._is_in_parts:
            if self._filling.view:
                await self._send()
            await self.flush()
            if not self._is_only_writer:
                return False
        else:
            self._digest.update(self._filling.view)
        if self._digest.hexdigest() != spec.sha256:
            await self._discard(hash_differs(spec.upload_id))
        if spec.size_bytes <= _MARKER_BYTES and is_marker_content(bytes(self._filling.view)):
            await self._discard(content_is_marker(0))
        return True

    async def _complete_with_stored_blob(self) -> bool:
        """Complete the upload with bytes that the tenant has stored already.

        Return False if it has none.

        The parts that this upload put are then deleted.
        """
        upload, storage = self.upload, self._storage
        async with storage.database.transaction(self._tenant_id) as connection:
            await uploads.lock_upload(connection, self._tenant_id, upload.key)
            if not await blobs.lock_stored_blob(connection, self._tenant_id, upload.spec):
                return False
            if not await uploads.complete_upload(connection, self._tenant_id, upload, storage.ttl_seconds):
                raise taken_over(upload.spec.upload_id)
            await usage.commit_with_usage(
                connection, self._tenant_id, uploading_bytes=-upload.spec.size_bytes
            )
        if self._multipart_id:
            await storage.multiparts.abort(self._tenant_id, upload.object_key, self._multipart_id)
        return True

    async def _assemble(self, is_verified: bool) -> None:
        """Create the object from the parts and check that it has the announced hash."""
        upload, storage = self.upload, self._storage
        try:
            await storage.multiparts.complete(
                self._tenant_id, upload.object_key, self._multipart_id, self._parts
            )
        except PartsLost:  # An earlier stream may have created the object before it was cut off.
            is_verified = False
        if is_verified:
            await self._require_object()
        elif not await self._has_announced_hash():
            await self._discard(hash_differs(upload.spec.upload_id))

    async def _require_object(self) -> None:
        """Raise S3Failed unless the object exists with the upload's size.

        The bytes were verified on their way, so the object is not read again.
        """
        upload = self.upload
        if await self._storage.objects.size_of(self._tenant_id, upload.object_key) != upload.spec.size_bytes:
            log.warning("completed_object_missing", object_key=upload.object_key)
            raise S3Failed(never_sent=False)

    async def _has_announced_hash(self) -> bool:
        read_bytes = 0
        try:
            async with self._storage.objects.open(self._tenant_id, self.upload.object_key) as body:
                while piece := await body.next_piece():
                    read_bytes += len(piece)
        except ObjectMissing:
            return False
        return read_bytes == self.upload.spec.size_bytes and body.sha256 == self.upload.spec.sha256

    async def _complete(self) -> None:
        upload, storage = self.upload, self._storage
        async with storage.database.transaction(self._tenant_id) as connection:
            await uploads.lock_upload(connection, self._tenant_id, upload.key)
            object_key = await blobs.store_uploaded_blob(connection, self._tenant_id, upload)
            if not await uploads.complete_upload(connection, self._tenant_id, upload, storage.ttl_seconds):
                raise taken_over(upload.spec.upload_id)
            size_bytes = upload.spec.size_bytes
            is_new = object_key == upload.object_key
            await usage.commit_with_usage(
                connection,
                self._tenant_id,
                stored_bytes=size_bytes if is_new else 0,
                uploading_bytes=-size_bytes,
            )
        if object_key != upload.object_key:  # Another call stored the same bytes in the meantime.
            await storage.objects.delete_all(self._tenant_id, [upload.object_key])

    async def _discard(self, error: MeshError) -> NoReturn:
        """Remove the upload and raise the error.

        If another stream took the upload over, it is kept: the error concerns this stream's bytes.
        """
        is_removed = await self._storage.remover.discard(self._tenant_id, self.upload)
        raise error if is_removed else taken_over(self.upload.spec.upload_id)
