"""Writes the bytes of an upload to S3, part by part, and creates the object from the parts."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
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
_OWN_PARTS = 2
_MOST_PARTS = 4  # A part that is full is put while the next one is filled.
SPARE_PARTS = 4


class SpareParts:
    """The buffers for parts that a replica has besides those of each stream."""

    def __init__(self, count: int = SPARE_PARTS) -> None:
        self._count = count

    @contextmanager
    def lent(self) -> Iterator[Callable[[], bool]]:
        """Yield a function that takes a buffer, if there is one, and says if it did. All that it
        took are free again at the end of the block.
        """
        taken = 0

        def take() -> bool:
            nonlocal taken
            if not self._count:
                return False
            self._count -= 1
            taken += 1
            return True

        try:
            yield take
        finally:
            self._count += taken


@dataclass(frozen=True, slots=True)
class UploadStorage:
    """The stores, clients and buffers that hold uploads."""

    database: Database
    objects: ObjectStore
    multiparts: Multiparts
    remover: UploadRemover
    spare_parts: SpareParts
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
    with storage.spare_parts.lent() as take_spare:
        async with asyncio.TaskGroup() as tasks:
            yield UploadWriter(storage, tenant_id, upload, parts, tasks, take_spare)


class UploadWriter:
    """The writer of one stream. It buffers the part that it fills and the one that leaves, and
    spare ones as long as the replica has some.

    Parts are put at the same time and recorded in order, so that those of a stream that breaks
    have no gap.
    """

    def __init__(
        self,
        storage: UploadStorage,
        tenant_id: str,
        upload: Upload,
        parts: list[StoredPart],
        tasks: asyncio.TaskGroup,
        take_spare: Callable[[], bool],
    ) -> None:
        self.upload = upload
        self._storage = storage
        self._tenant_id = tenant_id
        self._parts = parts
        self._part_count = len(parts)
        self._tasks = tasks
        self._take_spare = take_spare
        self._leaving: deque[asyncio.Task[None]] = deque()
        self._recorded = _future_of(True)
        self._multipart_id = upload.multipart_id
        self._filling: PartBuffer | None = PartBuffer(min(PART_BYTES, upload.spec.size_bytes))
        self._free: list[PartBuffer] = []
        self._buffer_count = 1
        self._digest = hashlib.sha256()
        self._digest_turn = asyncio.Lock()
        self.at_bytes = sum(part.size_bytes for part in parts)

    @property
    def _is_only_writer(self) -> bool:
        """True if no other stream ever put a part that could be in this object."""
        return self.upload.generation == 1

    async def write(self, data: bytes) -> bool:
        """Accept the next bytes and return whether they fill a part.

        Waits until a buffer is free, which means that an earlier part is durable.
        """
        self.at_bytes += len(data)
        rest = memoryview(data)
        has_filled_part = False
        while rest:
            if self._filling is None:
                self._filling = await self._free_buffer()
            rest = self._filling.take(rest)
            if self._filling.is_full and self._is_in_parts:
                await self._send(self._filling)
                has_filled_part = True
        return has_filled_part

    async def flush(self) -> None:
        """Wait until each full part is durable."""
        while self._leaving:
            await self._leaving.popleft()

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
            data = bytes(self._received)
            await self._storage.objects.put(
                self._tenant_id, self.upload.object_key, self.upload.spec.sha256, data
            )
        await self._complete()

    @property
    def _is_in_parts(self) -> bool:
        return self.upload.spec.size_bytes > PART_BYTES

    @property
    def _received(self) -> memoryview:
        """The bytes that are in no part yet."""
        return memoryview(b"") if self._filling is None else self._filling.view

    async def _free_buffer(self) -> PartBuffer:
        while not self._free:
            if self._buffer_count < _OWN_PARTS or (self._buffer_count < _MOST_PARTS and self._take_spare()):
                self._buffer_count += 1
                return PartBuffer(PART_BYTES)
            await self._leaving.popleft()
        return self._free.pop()

    async def _send(self, part: PartBuffer) -> None:
        """Begin to put the part. Another buffer takes the next bytes."""
        if not self._multipart_id:
            self._multipart_id = await shield_until_done(self._begin_multipart())
        before, self._recorded = self._recorded, asyncio.get_running_loop().create_future()
        self._part_count += 1
        storing = shield_until_done(self._store_part(self._part_count, part, before, self._recorded))
        self._leaving.append(self._tasks.create_task(storing))
        self._filling = None

    async def _store_part(
        self, number: int, part: PartBuffer, before: asyncio.Future[bool], recorded: asyncio.Future[bool]
    ) -> None:
        """Put the part, and record it if the part before it was recorded."""
        is_recorded = False
        try:
            async with self._digest_turn:  # Parts get it in their order, which is that of their tasks.
                await asyncio.to_thread(self._digest.update, part.view)
            stored = await self._put_part(number, part.view)
            if await before:
                await self._record(stored)
                is_recorded = True
        finally:
            recorded.set_result(is_recorded)
            part.clear()
            self._free.append(part)

    async def _put_part(self, number: int, data: memoryview) -> StoredPart:
        upload = self.upload
        try:
            return await self._storage.multiparts.put_part(
                self._tenant_id, upload.object_key, self._multipart_id, number, data
            )
        except PartsLost:  # A lifecycle rule of the bucket may have aborted the multipart upload.
            await self._discard(taken_over(upload.spec.upload_id))

    async def _record(self, part: StoredPart) -> None:
        upload, storage = self.upload, self._storage
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
            if self._filling is not None and self._filling.view:
                await self._send(self._filling)
            await self.flush()
            if not self._is_only_writer:
                return False
        else:
            self._digest.update(self._received)
        if self._digest.hexdigest() != spec.sha256:
            await self._discard(hash_differs(spec.upload_id))
        if spec.size_bytes <= _MARKER_BYTES and is_marker_content(bytes(self._received)):
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


def _future_of(value: bool) -> asyncio.Future[bool]:
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future
