"""Sends files in streams that go on where they were cut off."""

import asyncio
import hashlib
import io
import mimetypes
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
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
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachments import Attachment
from spawnmesh_client.patience import Patience
from spawnmesh_client.token_peer import TokenPeer

CHUNK_BYTES = 1024 * 1024
_PATIENCE_SECONDS = 60.0
_SLOWEST_BYTES_A_SECOND = 256 * 1024
_LOOK_AGAIN_SECONDS = 0.5
_STALLED_SECONDS = 30.0  # A part of the slowest stream takes 20 s.
_PLACE_SECONDS = 600.0  # Others' files are large, too.
_MOST_ROBBED = 10  # Each time another stream had stalled, and others than this one went on.
_RESENT = (Reason.UPLOAD_CRC_DIFFERS, Reason.UPLOAD_OFFSET_DIFFERS)
_MOST_RESENT = 3

_Readable = io.BufferedReader | io.BytesIO

OnProgress = Callable[[str, int, int], None]
"""Is told a file's name, how many of its bytes are sent or come, and of how many."""


def no_progress(_name: str, _done: int, _size: int) -> None:
    """For whom nobody watches."""


async def upload_file(peer: TokenPeer, attachment: Path | Attachment, on_progress: OnProgress = no_progress) -> Upload:
    """The file, complete in the tenant's store, a path under its last component. Bytes that the tenant has already are not sent.

    Outlasts cuts and restarts of the service. A repeat, by another program too, goes on where the first one was cut off; while another one
    sends the same file, this one waits for it. Raises OSError for a file that cannot be read, and MeshError: UPLOAD_HASH_DIFFERS among
    others, for a file that changed meanwhile.
    """
    spec = await asyncio.to_thread(_spec_of, attachment)
    stub = AttachmentBlobServiceStub(peer.channel)
    begun = await _announced(peer, spec)
    patience = Patience(_PATIENCE_SECONDS)
    resent = robbed = 0
    wait_until = monotonic_seconds() + _PLACE_SECONDS
    while begun.state != UPLOAD_STATE_COMPLETE:
        patience.calling()
        durable_bytes = begun.durable_bytes
        try:
            with _opened(attachment) as file:
                messages = _messages(spec, file, durable_bytes, on_progress)
                begun = await _send(peer, messages, timeout_seconds=_stream_seconds(spec.size_bytes))
        except MeshError as error:
            if error.reason is Reason.UPLOAD_TAKEN_OVER and robbed < _MOST_ROBBED:
                robbed += 1
                begun = await _while_another_sends(peer, spec, begun, on_progress)
                continue
            resent += error.reason in _RESENT
            if error.reason is Reason.POOL_EXHAUSTED and monotonic_seconds() < wait_until:
                await asyncio.sleep(error.retry_after_seconds or _LOOK_AGAIN_SECONDS)
            elif error.reason not in _RESENT or resent > _MOST_RESENT:
                await patience.after(error)
            request = rpc.GetUploadRequest(upload_id=spec.upload_id)
            begun = (await peer.unary(stub.GetUpload, request)).upload
            if begun.durable_bytes > durable_bytes:
                patience.heard()
                resent, wait_until = 0, monotonic_seconds() + _PLACE_SECONDS
    on_progress(spec.name, spec.size_bytes, spec.size_bytes)
    return begun


async def _while_another_sends(peer: TokenPeer, spec: UploadSpec, begun: Upload, on_progress: OnProgress) -> Upload:
    """The upload when another stream has made it COMPLETE or has stalled, or when it was removed and is begun anew."""
    patience = Patience(_PATIENCE_SECONDS)
    grow_time = monotonic_seconds()
    while begun.state != UPLOAD_STATE_COMPLETE and monotonic_seconds() - grow_time < _STALLED_SECONDS:
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        patience.calling()
        try:
            found = await _announced(peer, spec)
        except MeshError as error:
            if error.reason is not Reason.NOT_FOUND:  # It may be about to be removed.
                await patience.after(error)
            continue
        patience.heard()
        on_progress(spec.name, found.durable_bytes, spec.size_bytes)
        if found.create_time != begun.create_time:
            return found
        if found.durable_bytes > begun.durable_bytes:
            grow_time = monotonic_seconds()
        begun = found
    return begun


async def _announced(peer: TokenPeer, spec: UploadSpec) -> Upload:
    return await _send(peer, _only(spec), timeout_seconds=_PATIENCE_SECONDS)


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
            raise MeshError(
                Reason.UPLOAD_HASH_DIFFERS,
                f"{spec.name} was changed while it was read: it ends at {offset} of {spec.size_bytes} bytes; hand it over again once "
                "nobody writes to it",
                facts={"upload_id": spec.upload_id, "offset": offset, "size_bytes": spec.size_bytes},
            )
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


def _stream_seconds(size_bytes: int) -> float:
    return _PATIENCE_SECONDS + size_bytes / _SLOWEST_BYTES_A_SECOND
