"""Receives files in pieces.

A file that fits into one part is put when it is whole and its hash is right. A larger one is put part by part while it comes; each part counts
once its row is committed. The object is made of the parts when all are there, under a key of its own, and becomes the bytes of its hash only
after the hash was found right: as the bytes came, if one stream alone brought them, else by reading the object again.
"""

import secrets
from collections.abc import AsyncIterator

from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import invalid
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_attachment_blob import store, upload_store
from spawnmesh_attachment_blob.domain import AttachmentRefused
from spawnmesh_attachment_blob.domain.sets import put_key
from spawnmesh_attachment_blob.domain.uploads import (
    Chunk,
    Finish,
    TenantUploads,
    Upload,
    UploadKey,
    UploadSpec,
    UploadState,
    UploadSums,
    incomplete,
    require_allowed,
    require_next,
    require_room,
    require_same_spec,
    require_upload,
)
from spawnmesh_attachment_blob.errors import items_refused, unknown_tenant
from spawnmesh_attachment_blob.pace import SenderPace
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_attachment_blob.upload_parts import UploadParts, UploadWriter
from spawnmesh_attachment_blob.upload_places import IsOver, UploadPlaces, turn_over

Message = UploadSpec | Chunk | Finish


class Uploading:
    """Uploads, as their owners see them: the runs of a session, or with an empty `session_id` the tenant's clients. Each sees its own alone."""

    def __init__(self, database: Database, parts: UploadParts, settings: AttachmentBlobSettings) -> None:
        self._database = database
        self._parts = parts
        self._ttl_seconds = settings.upload_ttl_seconds
        self._idle_seconds = settings.upload_idle_seconds
        self._places = UploadPlaces(settings.upload_max_streams)
        self._may_be = TenantUploads(
            UploadSums(settings.upload_max_open, settings.upload_max_open_bytes),
            UploadSums(settings.upload_max_finished, settings.upload_max_finished_bytes),
        )

    async def get(self, tenant_id: str, key: UploadKey) -> Upload:
        """The upload. Raises NOT_FOUND."""
        async with self._database.transaction(tenant_id) as connection:
            return require_upload(await upload_store.get(connection, tenant_id, key), key)

    async def receive(self, tenant_id: str, session_id: str, messages: AsyncIterator[Message]) -> Upload:
        """The upload as it is when the stream ends. Raises MeshError; what was durable stays, except after UPLOAD_HASH_DIFFERS."""
        pace = SenderPace(self._idle_seconds)
        spec = await pace.next(messages)
        if not isinstance(spec, UploadSpec):
            raise invalid("spec", "is the first message of a stream")
        upload = await self._open(tenant_id, session_id, spec)
        if upload.state is UploadState.COMPLETE:
            return upload
        async with self._places.look(tenant_id):
            first = await pace.next(messages)
        if first is not None:
            async with self._places.taken(tenant_id) as is_over, self._parts.writer(tenant_id, upload.key) as writer:
                await self._write(writer, first, messages, pace, is_over)
        return await self.get(tenant_id, upload.key)

    async def _write(
        self,
        writer: UploadWriter,
        message: Message | None,
        messages: AsyncIterator[Message],
        pace: SenderPace,
        is_over: IsOver,
    ) -> None:
        spec = writer.upload.spec
        while message is not None:
            match message:
                case Chunk():
                    require_next(spec, writer.at_bytes, message)
                    pace.came(len(message.data))
                    has_filled_part = await writer.write(message.data)
                    if has_filled_part and writer.at_bytes < spec.size_bytes and is_over():
                        await writer.sent()
                        raise turn_over()
                case Finish():
                    if writer.at_bytes != spec.size_bytes:
                        raise incomplete(spec.upload_id, writer.at_bytes, spec.size_bytes)
                    await writer.finish()
                    return
                case UploadSpec():
                    raise invalid("spec", "is the first message of a stream and no other")
            message = await pace.next(messages)

    async def _open(self, tenant_id: str, session_id: str, spec: UploadSpec) -> Upload:
        """The upload of that spec: COMPLETE where a client began it and the tenant has the bytes, or a run did and its session has.

        One that is COMPLETE already is kept for longer, so that who repeats a spawn names the same upload.
        """
        key = UploadKey(session_id, spec.upload_id)
        async with self._database.transaction(tenant_id) as connection:
            found = await upload_store.get(connection, tenant_id, key)
            if found is None:
                await self._begin(connection, tenant_id, key, spec)
            await upload_store.lock(connection, tenant_id, key)
            upload = require_upload(await upload_store.get(connection, tenant_id, key), key)
            require_same_spec(upload, spec)
            if upload.state is UploadState.COMPLETE:
                await upload_store.keep(connection, tenant_id, upload, self._ttl_seconds)
            elif await upload_store.lock_stored_blob(connection, tenant_id, spec, session_id):
                await upload_store.complete(connection, tenant_id, upload, self._ttl_seconds)
            else:
                return upload
            return require_upload(await upload_store.get(connection, tenant_id, key), key)

    async def _begin(self, connection: Connection, tenant_id: str, key: UploadKey, spec: UploadSpec) -> None:
        """The upload is there. Raises for one that the tenant may not have."""
        await store.hold_off_purge(connection, tenant_id)
        tenant = await store.get_tenant(connection, tenant_id)
        if tenant is None or tenant.purging:
            raise unknown_tenant()
        try:
            require_allowed(spec, tenant.policy.limits)
        except AttachmentRefused as refused:
            raise items_refused(refused) from None
        is_stored = await upload_store.lock_stored_blob(connection, tenant_id, spec, key.session_id)
        beside = await upload_store.lock_room(connection, tenant_id, key)
        require_room(spec, beside, self._may_be, is_stored=is_stored, now=utc_now())
        object_key = put_key(spec.sha256, secrets.token_hex(8))
        await upload_store.insert(connection, tenant_id, spec, key.session_id, object_key, self._ttl_seconds)
