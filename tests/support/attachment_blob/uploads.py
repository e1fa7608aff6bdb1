"""Messages and calls of uploads."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import google_crc32c
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2, upload_pb2
from spawnmesh_core.ids import IdKind, new_id

from tests.support.attachment_blob.fixtures import KIB, Tenant, new_set_id

MIB = 1024 * KIB
PART = 5 * MIB
CHUNK = 1 * MIB
WHOLE = {"max_file_bytes": 1024 * MIB, "max_total_bytes": 1024 * MIB}


def content(size: int, seed: int = 0) -> bytes:
    """Return `size` bytes that have no short period."""
    block = hashlib.shake_128(seed.to_bytes(4)).digest(min(size, 65_537))
    return (block * (size // len(block) + 1))[:size] if block else b""


def new_upload_id() -> str:
    """Return a new upload id."""
    return new_id(IdKind.UPLOAD)


def spec_of(data: bytes, **changed: Any) -> upload_pb2.UploadSpec:
    """Build the spec of a file with these bytes."""
    fields = {
        "upload_id": new_upload_id(),
        "name": "big.bin",
        "size_bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "mime_type": "application/x-test",
    }
    return upload_pb2.UploadSpec(**{**fields, **changed})


def chunk(offset: int, data: bytes, **changed: Any) -> pb.UploadFileRequest:
    """Build a chunk with the right checksum, unless another one is given."""
    fields = {"offset": offset, "data": data, "crc32c": google_crc32c.value(data)}
    return pb.UploadFileRequest(chunk=upload_pb2.UploadChunk(**{**fields, **changed}))


def chunks(data: bytes, start: int = 0, end: int | None = None) -> Iterable[pb.UploadFileRequest]:
    """Yield the chunks of a range of the file."""
    stop = len(data) if end is None else end
    for offset in range(start, stop, CHUNK):
        yield chunk(offset, data[offset : min(offset + CHUNK, stop)])


def begin(spec: upload_pb2.UploadSpec) -> pb.UploadFileRequest:
    """Build the first message."""
    return pb.UploadFileRequest(spec=spec)


def finish() -> pb.UploadFileRequest:
    """Build the last message."""
    return pb.UploadFileRequest(finish=upload_pb2.UploadFinish())


async def send(
    tenant: Tenant,
    *messages: pb.UploadFileRequest | Iterable[pb.UploadFileRequest],
    token: str = "",
    hold: asyncio.Event | None = None,
) -> upload_pb2.Upload:
    """Send one stream of these messages. If `hold` is given, keep it open until that is set."""

    async def stream() -> AsyncIterator[pb.UploadFileRequest]:
        for message in messages:
            for each in [message] if isinstance(message, pb.UploadFileRequest) else message:
                yield each
        if hold is not None:
            await hold.wait()

    answer: pb.UploadFileResponse = await tenant.call(
        "UploadFile", stream(), token=token or tenant.client_token(), timeout_seconds=60
    )
    return answer.upload


async def upload(tenant: Tenant, data: bytes, **spec: Any) -> upload_pb2.Upload:
    """Upload a complete file in one stream."""
    return await send(tenant, begin(spec_of(data, **spec)), chunks(data), finish())


async def get_upload(tenant: Tenant, upload_id: str, *, token: str = "") -> upload_pb2.Upload:
    """Return the upload from GetUpload."""
    request = pb.GetUploadRequest(upload_id=upload_id)
    answer: pb.GetUploadResponse = await tenant.call(
        "GetUpload", request, token=token or tenant.client_token()
    )
    return answer.upload


async def stage_uploads(
    tenant: Tenant,
    *refs: upload_pb2.UploadedAttachment,
    items: Iterable[attachment_pb2.InlineAttachment] = (),
    **more: Any,
) -> attachment_pb2.AttachmentSet:
    """Stage a set of uploads and items."""
    request = pb.StageSetRequest(
        set_id=new_set_id(), session_id=new_id(IdKind.SESSION), items=items, uploads=refs, **more
    )
    answer: pb.StageSetResponse = await tenant.call("StageSet", request)
    return answer.set


def ref(upload_id: str, name: str = "") -> upload_pb2.UploadedAttachment:
    """Build the reference of a set to an upload."""
    return upload_pb2.UploadedAttachment(upload_id=upload_id, name=name)
