"""Uploads of files in streams that resume where they broke."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as rpc
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.attachment_blob.v1.upload_pb2 import (
    UPLOAD_STATE_COMPLETE,
    Upload,
    UploadChunk,
    UploadFinish,
    UploadSpec,
)
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachments import Readable, Sendable, mime_type_of, opened
from spawnmesh_client.crc32c import crc32c
from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.token_peer import TokenPeer

CHUNK_BYTES = 1024 * 1024
_RETRY_SECONDS = 60.0
_SLOWEST_BYTES_A_SECOND = 256 * 1024
_POLL_SECONDS = 0.5
_STALLED_SECONDS = 30.0  # One part of the slowest stream takes 20 s.
_READER_WAIT_SECONDS = 600.0  # Other senders' files are large, too.
_MOST_ROBBED = 10  # Another stream may stall so often and be continued by a third one.
_RESENT = (Reason.UPLOAD_CRC_DIFFERS, Reason.UPLOAD_OFFSET_DIFFERS)
_MOST_RESENT = 3

OnProgress = Callable[[str, int, int], None]
"""Receive a file's name, the number of its bytes transferred so far, and its size in bytes."""


def no_progress(_name: str, _done: int, _size: int) -> None:
    """Ignore the progress."""


async def upload_file(peer: TokenPeer, attachment: Sendable, on_progress: OnProgress = no_progress) -> Upload:
    """Upload the file to the tenant's store and return the complete upload.

    A path is sent under its last component.

    Bytes that the tenant already has are not sent. The upload resumes after broken streams and
    restarts of the service, also when another program repeats it. While another program sends the
    same file, this call waits for it. Raises OSError for a file that cannot be read, and MeshError,
    for example UPLOAD_HASH_DIFFERS if the file changed meanwhile.
    """
    spec = await asyncio.to_thread(_spec_of, attachment)
    stub = AttachmentBlobServiceStub(peer.channel)
    begun = await _announced(peer, spec)
    retry = RetryPolicy(_RETRY_SECONDS)
    resent = robbed = 0
    wait_until = monotonic_seconds() + _READER_WAIT_SECONDS
    while begun.state != UPLOAD_STATE_COMPLETE:
        retry.begin_attempt()
        durable_bytes = begun.durable_bytes
        try:
            with opened(attachment) as file:
                messages = _messages(spec, file, durable_bytes, on_progress)
                begun = await _send(peer, messages, timeout_seconds=_stream_seconds(spec.size_bytes))
        except MeshError as error:
            if error.reason is Reason.UPLOAD_TAKEN_OVER and robbed < _MOST_ROBBED:
                robbed += 1
                begun = await _while_another_sends(peer, spec, begun, on_progress)
                continue
            resent += error.reason in _RESENT
            if (
                error.reason in (Reason.POOL_EXHAUSTED, Reason.RATE_LIMITED)
                and monotonic_seconds() < wait_until
            ):
                await asyncio.sleep(error.retry_after_seconds or _POLL_SECONDS)
            elif error.reason not in _RESENT or resent > _MOST_RESENT:
                await retry.wait_before_next(error)
            request = rpc.GetUploadRequest(upload_id=spec.upload_id)
            begun = (await peer.unary(stub.GetUpload, request)).upload
            if begun.durable_bytes > durable_bytes:
                retry.record_answer()
                resent, wait_until = 0, monotonic_seconds() + _READER_WAIT_SECONDS
    on_progress(spec.name, spec.size_bytes, spec.size_bytes)
    return begun


async def _while_another_sends(
    peer: TokenPeer, spec: UploadSpec, begun: Upload, on_progress: OnProgress
) -> Upload:
    """Wait while another stream sends the file.

    Return the upload when it is COMPLETE, when the other stream stalled, or when it was removed and
    begun again.
    """
    retry = RetryPolicy(_RETRY_SECONDS)
    grow_time = monotonic_seconds()
    while begun.state != UPLOAD_STATE_COMPLETE and monotonic_seconds() - grow_time < _STALLED_SECONDS:
        await asyncio.sleep(_POLL_SECONDS)
        retry.begin_attempt()
        try:
            found = await _announced(peer, spec)
        except MeshError as error:
            if error.reason is not Reason.NOT_FOUND:  # It may be about to be removed.
                await retry.wait_before_next(error)
            continue
        retry.record_answer()
        on_progress(spec.name, found.durable_bytes, spec.size_bytes)
        if found.create_time != begun.create_time:
            return found
        if found.durable_bytes > begun.durable_bytes:
            grow_time = monotonic_seconds()
        begun = found
    return begun


async def _announced(peer: TokenPeer, spec: UploadSpec) -> Upload:
    return await _send(peer, _only(spec), timeout_seconds=_RETRY_SECONDS)


async def _send(
    peer: TokenPeer, messages: AsyncIterator[rpc.UploadFileRequest], *, timeout_seconds: float
) -> Upload:
    stub = AttachmentBlobServiceStub(peer.channel)
    # A call with a stream is made like one with a message; the type of `unary` does not say so.
    answer: rpc.UploadFileResponse = await peer.unary(
        cast(Any, stub.UploadFile), messages, timeout_seconds=timeout_seconds
    )
    return answer.upload


async def _only(spec: UploadSpec) -> AsyncIterator[rpc.UploadFileRequest]:
    yield rpc.UploadFileRequest(spec=spec)


async def _messages(
    spec: UploadSpec, file: Readable, offset: int, on_progress: OnProgress
) -> AsyncIterator[rpc.UploadFileRequest]:
    yield rpc.UploadFileRequest(spec=spec)
    await asyncio.to_thread(file.seek, offset)
    while offset < spec.size_bytes:
        on_progress(spec.name, offset, spec.size_bytes)
        data = await asyncio.to_thread(file.read, min(CHUNK_BYTES, spec.size_bytes - offset))
        if not data:
            raise MeshError(
                Reason.UPLOAD_HASH_DIFFERS,
                f"{spec.name} was changed while it was read: it ends at {offset} of {spec.size_bytes} bytes;"
                " hand it over again when no program writes to it",
                facts={"upload_id": spec.upload_id, "offset": offset, "size_bytes": spec.size_bytes},
            )
        check = await asyncio.to_thread(crc32c, data)
        yield rpc.UploadFileRequest(chunk=UploadChunk(offset=offset, data=data, crc32c=check))
        offset += len(data)
    yield rpc.UploadFileRequest(finish=UploadFinish())


def _spec_of(attachment: Sendable) -> UploadSpec:
    with opened(attachment) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size_bytes = file.seek(0, os.SEEK_END)
    mime_type = mime_type_of(attachment)
    # The same file has the same id, so that a repeat finds what was sent. Ids have their time where
    # the zeros are.
    source = f"{attachment.name}/{mime_type}/{size_bytes}/{sha256}_0000000000"
    upload_id = derived_id(IdKind.UPLOAD, source)
    return UploadSpec(
        upload_id=upload_id, name=attachment.name, size_bytes=size_bytes, sha256=sha256, mime_type=mime_type
    )


def _stream_seconds(size_bytes: int) -> float:
    return _RETRY_SECONDS + size_bytes / _SLOWEST_BYTES_A_SECOND
