"""Puts the bytes of an upload, part by part, and makes the object of them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import structlog
from spawnmesh_core.cancellation import uninterrupted
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob import upload_store
from spawnmesh_attachment_blob.domain.marker import is_redaction_marker
from spawnmesh_attachment_blob.domain.part_buffer import PartBuffer
from spawnmesh_attachment_blob.domain.uploads import (
    PART_BYTES,
    Upload,
    UploadKey,
    hash_differs,
    require_upload,
    taken_over,
)
from spawnmesh_attachment_blob.errors import content_is_marker
from spawnmesh_attachment_blob.multiparts import Multiparts, PartsLost, StoredPart
from spawnmesh_attachment_blob.objects import ObjectMissing, ObjectStore
from spawnmesh_attachment_blob.s3_calls import S3Failed
from spawnmesh_attachment_blob.upload_removal import UploadRemoval

log = structlog.get_logger()

_MARKER_BYTES = 64 * 1024  # No transcript shows a longer one.


class UploadParts:
    """Opens uploads for writing."""

    def __init__(
        self,
        database: Database,
        objects: ObjectStore,
        multiparts: Multiparts,
        removal: UploadRemoval,
        ttl_seconds: int,
    ) -> None:
        self.database = database
        self.objects = objects
        self.multiparts = multiparts
        self.removal = removal
        self.ttl_seconds = ttl_seconds

    @asynccontextmanager
    async def writer(self, tenant_id: str, key: UploadKey) -> AsyncIterator["UploadWriter"]:
        """The upload from where it is durable; whoever wrote to it before is refused from now on.

        Raises UPLOAD_TAKEN_OVER for one that takes no bytes any more.
        """
        async with self.database.transaction(tenant_id) as connection:
            row_id = await upload_store.lock(connection, tenant_id, key)
            if row_id is None or not await upload_store.take(connection, tenant_id, row_id, self.ttl_seconds):
                raise taken_over(key.upload_id)
            upload = require_upload(await upload_store.get(connection, tenant_id, key), key)
            parts = await upload_store.parts(connection, tenant_id, row_id)
        async with asyncio.TaskGroup() as tasks:
            yield UploadWriter(self, tenant_id, upload, parts, tasks)


class UploadWriter:
    """One stream's hold on an upload. Keeps two parts and a chunk in memory."""

    def __init__(
        self,
        within: UploadParts,
        tenant_id: str,
        upload: Upload,
        parts: list[StoredPart],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.upload = upload
        self._within = within
        self._tenant_id = tenant_id
        self._parts = parts
        self._tasks = tasks
        self._sending: asyncio.Task[None] | None = None
        self._multipart_id = upload.multipart_id
        room_bytes = min(PART_BYTES, upload.spec.size_bytes)
        self._filling, self._leaving = PartBuffer(room_bytes), PartBuffer(0)
        self._digest = hashlib.sha256()
        self.at_bytes = sum(part.size_bytes for part in parts)

    @property
    def _is_only_writer(self) -> bool:
        """Whether no other stream ever put a part that could be in this object."""
        return self.upload.generation == 1

    async def write(self, data: bytes) -> bool:
        """Takes the next bytes; whether they fill a part. Waits while the part before that one is not durable."""
        self.at_bytes += len(data)
        rest = memoryview(data)
        has_filled_part = False
        while rest:
            rest = self._filling.take(rest)
            if self._filling.is_full and self._is_in_parts:
                await self._send()
                has_filled_part = True
        return has_filled_part

    async def sent(self) -> None:
        """Returns when each part that is full is durable."""
        if self._sending is not None:
            await self._sending

    async def finish(self) -> None:
        """The upload is COMPLETE. Raises UPLOAD_HASH_DIFFERS, after which it is forgotten, and UPLOAD_TAKEN_OVER."""
        is_judged = await self._judged()
        if is_judged and await self._is_stored_already():
            return
        if self._is_in_parts:
            await self._assemble(is_judged)
        else:
            data = bytes(self._filling.view)
            await self._within.objects.put(self._tenant_id, self.upload.object_key, self.upload.spec.sha256, data)
        await self._complete()

    @property
    def _is_in_parts(self) -> bool:
        return self.upload.spec.size_bytes > PART_BYTES

    async def _send(self) -> None:
        await self.sent()
        if self._sending is None:
            self._leaving = PartBuffer(PART_BYTES)
        self._filling, self._leaving = self._leaving, self._filling
        self._filling.clear()
        part = uninterrupted(self._store_part(len(self._parts) + 1, self._leaving.view))
        self._sending = self._tasks.create_task(part)

    async def _store_part(self, number: int, data: memoryview) -> None:
        upload, within = self.upload, self._within
        await asyncio.to_thread(self._digest.update, data)
        if not self._multipart_id:
            self._multipart_id = await self._begin()
        try:
            part = await within.multiparts.put_part(
                self._tenant_id, upload.object_key, self._multipart_id, number, data
            )
        except PartsLost:  # As a rule of the bucket does that ends what is unfinished for long: going on is in vain.
            await self._give_up(taken_over(upload.spec.upload_id))
        async with within.database.transaction(self._tenant_id) as connection:
            if not await upload_store.add_part(connection, self._tenant_id, upload, part, within.ttl_seconds):
                raise taken_over(upload.spec.upload_id)
        self._parts.append(part)

    async def _begin(self) -> str:
        """One that is begun and not written down, because the process ends here, is found by the collector."""
        upload, within = self.upload, self._within
        multipart_id = await within.multiparts.begin(self._tenant_id, upload.object_key)
        async with within.database.transaction(self._tenant_id) as connection:
            is_ours = await upload_store.set_multipart(connection, self._tenant_id, upload, multipart_id)
        if not is_ours:
            await within.multiparts.abort(self._tenant_id, upload.object_key, multipart_id)
            raise taken_over(upload.spec.upload_id)
        return multipart_id

    async def _judged(self) -> bool:
        """Whether the bytes are the announced ones, and were all seen here; False where only the object can tell. Raises for other bytes."""
        spec = self.upload.spec
        if self._is_in_parts:
            if self._filling.view:
                await self._send()
            await self.sent()
            if not self._is_only_writer:
                return False
        else:
            self._digest.update(self._filling.view)
        if self._digest.hexdigest() != spec.sha256:
            await self._give_up(hash_differs(spec.upload_id))
        if spec.size_bytes <= _MARKER_BYTES and is_redaction_marker(bytes(self._filling.view)):
            await self._give_up(content_is_marker(0))
        return True

    async def _is_stored_already(self) -> bool:
        """Whether the tenant has the bytes, which were brought, elsewhere: then the upload refers to those, and what it had put is gone."""
        upload, within = self.upload, self._within
        async with within.database.transaction(self._tenant_id) as connection:
            await upload_store.lock(connection, self._tenant_id, upload.key)
            if not await upload_store.lock_stored_blob(connection, self._tenant_id, upload.spec):
                return False
            if not await upload_store.complete(connection, self._tenant_id, upload, within.ttl_seconds):
                raise taken_over(upload.spec.upload_id)
        if self._multipart_id:
            await within.multiparts.abort(self._tenant_id, upload.object_key, self._multipart_id)
        return True

    async def _assemble(self, is_judged: bool) -> None:
        """The object is there and has the announced hash."""
        upload, within = self.upload, self._within
        try:
            await within.multiparts.complete(self._tenant_id, upload.object_key, self._multipart_id, self._parts)
        except PartsLost:  # An earlier stream may have got this far before it was cut off: then the object says so.
            is_judged = False
        if is_judged:
            await self._require_object()
        elif not await self._reads_right():
            await self._give_up(hash_differs(upload.spec.upload_id))

    async def _require_object(self) -> None:
        """Raises S3Failed unless the object is there, as large as the upload: its bytes went through here, and nobody reads them again."""
        upload = self.upload
        if await self._within.objects.size_of(self._tenant_id, upload.object_key) != upload.spec.size_bytes:
            log.warning("completed_object_missing", object_key=upload.object_key)
            raise S3Failed(never_sent=False)

    async def _reads_right(self) -> bool:
        read_bytes = 0
        try:
            async with self._within.objects.open(self._tenant_id, self.upload.object_key) as body:
                while piece := await body.next_piece():
                    read_bytes += len(piece)
        except ObjectMissing:
            return False
        return read_bytes == self.upload.spec.size_bytes and body.sha256 == self.upload.spec.sha256

    async def _complete(self) -> None:
        upload, within = self.upload, self._within
        async with within.database.transaction(self._tenant_id) as connection:
            await upload_store.lock(connection, self._tenant_id, upload.key)
            object_key = await upload_store.store_blob(connection, self._tenant_id, upload)
            if not await upload_store.complete(connection, self._tenant_id, upload, within.ttl_seconds):
                raise taken_over(upload.spec.upload_id)
        if object_key != upload.object_key:  # Somebody stored the same bytes meanwhile.
            await within.objects.delete_all(self._tenant_id, [upload.object_key])

    async def _give_up(self, refusal: MeshError) -> NoReturn:
        """The upload is forgotten, unless another stream goes on with it: that one's bytes are not judged by these."""
        is_gone = await self._within.removal.give_up(self._tenant_id, self.upload)
        raise refusal if is_gone else taken_over(self.upload.spec.upload_id)
