"""Sends files in streams that go on where they were cut off."""

import asyncio
import hashlib
import io
import mimetypes
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, cast

import google_crc32c
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as rpc
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.attachment_blob.v1.upload_pb2 import (
    UPLOAD_STATE_COMPLETE,
    Upload,
    UploadChunk,
    UploadFinish,
    UploadSpec,
)
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, derived_id, new_id
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachments import Attachment
from spawnmesh_client.patience import Patience
from spawnmesh_client.token_peer import TokenPeer

CHUNK_BYTES = 1024 * 1024
_PATIENCE_SECONDS = 60.0
_SLOWEST_BYTES_A_SECOND = 256 * 1024
_LEAST_LIFE = timedelta(minutes=15)  # For the spawn that is to name the upload.
_RESENT = (Reason.UPLOAD_CRC_DIFFERS, Reason.UPLOAD_OFFSET_DIFFERS)
_MOST_RESENT = 3

_Readable = io.BufferedReader | io.BytesIO

OnProgress = Callable[[str, int, int], None]
"""Is told a file's name, how many of its bytes are sent or come, and of how many."""


def no_progress(_name: str, _done: int, _size: int) -> None:
    """For whom nobody watches."""


async def upload_file(peer: TokenPeer, attachment: Path | Attachment, on_progress: OnProgress = no_progress) -> Upload:
    """The file, complete in the tenant's store, a path under its last component. Bytes that the tenant has already are not sent.

    Outlasts cuts and restarts of the service. A repeat, by another program too, goes on where the first one was cut off. Raises
    OSError for a file that cannot be read, and MeshError: UPLOAD_HASH_DIFFERS among others, for a file that changed meanwhile.
    """
    spec = await asyncio.to_thread(_spec_of, attachment)
    stub = AttachmentBlobServiceStub(peer.channel)
    begun = await _send(peer, _only(spec), timeout_seconds=_PATIENCE_SECONDS)
    if begun.state == UPLOAD_STATE_COMPLETE and _life(begun) < _LEAST_LIFE:
        spec.upload_id = new_id(IdKind.UPLOAD)
        begun = await _send(peer, _only(spec), timeout_seconds=_PATIENCE_SECONDS)
    patience = Patience(_PATIENCE_SECONDS)
    resent = 0
    while begun.state != UPLOAD_STATE_COMPLETE:
        patience.calling()
        durable_bytes = begun.durable_bytes
        try:
            with _opened(attachment) as file:
                messages = _messages(spec, file, durable_bytes, on_progress)
                begun = await _send(peer, messages, timeout_seconds=_stream_seconds(spec.size_bytes))
        except MeshError as error:
            resent += error.reason in _RESENT
            if error.reason not in _RESENT or resent > _MOST_RESENT:
                await patience.after(error)
            request = rpc.GetUploadRequest(upload_id=spec.upload_id)
            begun = (await peer.unary(stub.GetUpload, request)).upload
            if begun.durable_bytes > durable_bytes:
                patience.heard()
    on_progress(spec.name, spec.size_bytes, spec.size_bytes)
    return begun


async def _send(peer: TokenPeer, messages: AsyncIterator[rpc.UploadFileRequest], *, timeout_seconds: float) -> Upload:
    stub = AttachmentBlobServiceStub(peer.channel)
    # A call of a stream is made like one of a message, which the type of `unary` does not tell.
    answer: rpc.UploadFileResponse = await peer.unary(
        cast(Any, stub.UploadFile), messages, timeout_seconds=timeout_seconds
    )
    return answer.upload


async def _only(spec: UploadSpec) -> AsyncIterator[rpc.UploadFileRequest]:
    yield rpc.UploadFileRequest(spec=spec)


async def _messages(
    spec: UploadSpec, file: _Readable, offset: int, on_progress: OnProgress
) -> AsyncIterator[rpc.UploadFileRequest]:
    yield rpc.UploadFileRequest(spec=spec)
    await asyncio.to_thread(file.seek, offset)
    while offset < spec.size_bytes:
        on_progress(spec.name, offset, spec.size_bytes)
        data = await asyncio.to_thread(file.read, min(CHUNK_BYTES, spec.size_bytes - offset))
        if not data:
            return  # It has shrunk: the service says how much is missing.
        yield rpc.UploadFileRequest(chunk=UploadChunk(offset=offset, data=data, crc32c=google_crc32c.value(data)))
        offset += len(data)
    yield rpc.UploadFileRequest(finish=UploadFinish())


def _spec_of(attachment: Path | Attachment) -> UploadSpec:
    with _opened(attachment) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size_bytes = file.seek(0, os.SEEK_END)
    mime_type = "" if isinstance(attachment, Path) else attachment.mime_type
    mime_type = mime_type or mimetypes.guess_type(attachment.name)[0] or ""
    # The same file has the same id, so that a repeat finds what was sent. The zeros are where ids have their time.
    source = f"{attachment.name}/{mime_type}/{size_bytes}/{sha256}_0000000000"
    upload_id = derived_id(IdKind.UPLOAD, source)
    return UploadSpec(
        upload_id=upload_id, name=attachment.name, size_bytes=size_bytes, sha256=sha256, mime_type=mime_type
    )


def _opened(attachment: Path | Attachment) -> AbstractContextManager[_Readable]:
    return attachment.open("rb") if isinstance(attachment, Path) else io.BytesIO(attachment.data)


def _life(upload: Upload) -> timedelta:
    return upload.expire_time.ToDatetime(tzinfo=UTC) - utc_now()


def _stream_seconds(size_bytes: int) -> float:
    return _PATIENCE_SECONDS + size_bytes / _SLOWEST_BYTES_A_SECOND
