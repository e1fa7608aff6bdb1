"""UploadFile.

A file that fits into one part is put when it is complete and its hash is verified. A larger file
is put part by part; a part is durable once its row is committed. The object is created from the
parts under a key of its own. It is referenced only after its hash was verified: from the received
bytes if one stream sent all of them, else by reading the object.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import NoReturn

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import invalid
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.tenant_purges import join_writers
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.domain import AttachmentRefused
from spawnmesh_attachment_blob.domain.errors import items_refused, unknown_tenant
from spawnmesh_attachment_blob.domain.sets import object_key
from spawnmesh_attachment_blob.domain.storage import storage_exceeded
from spawnmesh_attachment_blob.domain.uploads import (
    Chunk,
    Finish,
    Upload,
    UploadKey,
    UploadMessage,
    UploadSpec,
    UploadState,
    incomplete,
    require_allowed,
    require_next,
    require_quota,
    require_same_spec,
    require_upload,
)
from spawnmesh_attachment_blob.operations.idle_timeout import SenderIdleTimeout
from spawnmesh_attachment_blob.operations.upload_limiter import IsTurnOver, turn_over
from spawnmesh_attachment_blob.operations.upload_writer import UploadWriter, open_upload_writer
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_upload, render_upload
from spawnmesh_attachment_blob.store import blobs, tenants, uploads, usage


async def upload_file(
    requests: AsyncIterator[pb.UploadFileRequest], caller: Caller, deps: Dependencies
) -> pb.UploadFileResponse:
    """Receive a file and return its upload as it is when the stream ends."""
    async with aclosing(parse_upload(requests)) as messages:
        upload = await receive_upload(messages, caller.tenant_id, caller.session_id, deps)
    return pb.UploadFileResponse(upload=render_upload(upload))


async def receive_upload(
    messages: AsyncIterator[UploadMessage], tenant_id: str, session_id: str, deps: Dependencies
) -> Upload:
    """Receive the upload of a session's run, or of a client if `session_id` is empty.

    Raises MeshError. Durable bytes remain, except after UPLOAD_HASH_DIFFERS.
    """
    idle_timeout = SenderIdleTimeout(deps.upload_idle_seconds)
    spec = await idle_timeout.next(messages)
    if not isinstance(spec, UploadSpec):
        raise invalid("spec", "is the first message of a stream")
    upload = await _open_upload(tenant_id, session_id, spec, deps)
    if upload.state is UploadState.COMPLETE:
        return upload
    async with deps.upload_limiter.acquire_first_chunk(tenant_id):
        first = await idle_timeout.next(messages)
    if first is not None:
        async with (
            deps.upload_limiter.acquire_stream(tenant_id) as is_turn_over,
            open_upload_writer(deps.upload_storage, tenant_id, upload.key) as writer,
        ):
            await _write(writer, first, messages, idle_timeout, is_turn_over)
    async with deps.database.transaction(tenant_id) as connection:
        return require_upload(await uploads.get_upload(connection, tenant_id, upload.key), upload.key)


async def _write(
    writer: UploadWriter,
    message: UploadMessage | None,
    messages: AsyncIterator[UploadMessage],
    idle_timeout: SenderIdleTimeout,
    is_turn_over: IsTurnOver,
) -> None:
    spec = writer.upload.spec
    while message is not None:
        match message:
            case Chunk():
                require_next(spec, writer.at_bytes, message)
                idle_timeout.refill(len(message.data))
                has_filled_part = await writer.write(message.data)
                if has_filled_part and writer.at_bytes < spec.size_bytes and is_turn_over():
                    await writer.flush()
                    raise turn_over()
            case Finish():
                if writer.at_bytes != spec.size_bytes:
                    raise incomplete(spec.upload_id, writer.at_bytes, spec.size_bytes)
                await writer.finish()
                return
            case UploadSpec():
                raise invalid("spec", "is the first message of a stream and no other")
        message = await idle_timeout.next(messages)


async def _open_upload(tenant_id: str, session_id: str, spec: UploadSpec, deps: Dependencies) -> Upload:
    """Return the upload with this spec, begun if it does not exist.

    It is COMPLETE at once if the owner may read the bytes already: a client all of the tenant's, a
    run those of its session. An upload that is COMPLETE already is kept for longer, so that a
    repeated spawn can name it.
    """
    key = UploadKey(session_id, spec.upload_id)
    ttl_seconds = deps.upload_storage.ttl_seconds
    async with deps.database.transaction(tenant_id) as connection:
        found = await uploads.get_upload(connection, tenant_id, key)
        is_new = found is None and await _begin_upload(connection, tenant_id, key, spec, deps)
        await uploads.lock_upload(connection, tenant_id, key)
        upload = require_upload(await uploads.get_upload(connection, tenant_id, key), key)
        require_same_spec(upload, spec)
        if upload.state is UploadState.COMPLETE:
            await uploads.extend_upload(connection, tenant_id, upload, ttl_seconds)
        elif await blobs.lock_stored_blob(connection, tenant_id, spec, session_id):
            await uploads.complete_upload(connection, tenant_id, upload, ttl_seconds)
            completed = require_upload(await uploads.get_upload(connection, tenant_id, key), key)
            if not is_new:
                await usage.commit_with_usage(connection, tenant_id, uploading_bytes=-spec.size_bytes)
            return completed
        else:
            if is_new and not await usage.reserve_upload(connection, tenant_id, spec.size_bytes):
                await _refuse(connection, tenant_id, spec)
            return upload
        return require_upload(await uploads.get_upload(connection, tenant_id, key), key)


async def _begin_upload(
    connection: Connection, tenant_id: str, key: UploadKey, spec: UploadSpec, deps: Dependencies
) -> bool:
    """Insert the upload, unless another call has, and return whether it was inserted.

    Raises if the tenant's limits or its quota of uploads forbid it.
    """
    await join_writers(connection, tenant_id)
    tenant = await tenants.get_tenant(connection, tenant_id)
    if tenant is None:
        raise unknown_tenant()
    try:
        require_allowed(spec, tenant.policy.limits)
    except AttachmentRefused as refused:
        raise items_refused(refused) from None
    is_stored = await blobs.lock_stored_blob(connection, tenant_id, spec, key.session_id)
    usage = await uploads.count_uploads(connection, tenant_id, key)
    require_quota(spec, usage, deps.upload_quota, is_stored=is_stored, now=utc_now())
    return await uploads.insert_upload(
        connection,
        tenant_id,
        spec,
        key.session_id,
        object_key(spec.sha256, secrets.token_hex(8)),
        deps.upload_storage.ttl_seconds,
    )


async def _refuse(connection: Connection, tenant_id: str, spec: UploadSpec) -> NoReturn:
    """Raise the refusal of an upload whose bytes do not fit into the tenant's storage quota."""
    in_use = await usage.get_usage(connection, tenant_id)
    raise unknown_tenant() if in_use is None else storage_exceeded(in_use, spec.size_bytes)
