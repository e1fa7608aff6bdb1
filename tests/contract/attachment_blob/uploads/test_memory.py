"""A file larger than the memory that it may cost goes in and out of a process of its own.

160 MiB; `SPAWNMESH_LARGE_FILE_MIB=1024` makes it a gibibyte.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import upload_pb2

from tests.support.attachment_blob.fixtures import KIB, BlobService
from tests.support.attachment_blob.own_process import highest_rss, own_process, until_prepared
from tests.support.attachment_blob.uploads import (
    MIB,
    begin,
    chunk,
    content,
    finish,
    new_upload_id,
    ref,
    stage_uploads,
)

SIZE_MIB = int(os.environ.get("SPAWNMESH_LARGE_FILE_MIB", "160"))
CHUNK = 256 * KIB
CHUNKS = SIZE_MIB * MIB // CHUNK
# Parts and chunks in flight do not depend on the size of the file. There are more of them on a
# machine that runs other tests.
# `make bench` requires 200 MiB.
RSS_LIMIT = 256 * MIB
GROWTH_LIMIT = 128 * MIB


@pytest.mark.timeout(600)
async def test_a_large_file_needs_constant_memory(blobs: BlobService) -> None:
    block = content(CHUNK)
    piece = chunk(0, block)
    digest = hashlib.sha256()
    for _ in range(CHUNKS):
        digest.update(block)
    spec = upload_pb2.UploadSpec(
        upload_id=new_upload_id(), name="large", size_bytes=SIZE_MIB * MIB, sha256=digest.hexdigest()
    )

    async def messages() -> AsyncIterator[pb.UploadFileRequest]:
        yield begin(spec)
        for number in range(CHUNKS):
            piece.chunk.offset = number * CHUNK
            yield piece
        yield finish()

    async with own_process(blobs) as (service, process):
        tenant = service.tenant()
        await until_prepared(tenant, SIZE_MIB * MIB)
        before = process.memory_info().rss
        done = asyncio.Event()
        watching = asyncio.ensure_future(highest_rss(process, done))
        try:
            answer = await tenant.call(
                "UploadFile", messages(), token=tenant.client_token(), timeout_seconds=500
            )
            assert answer.upload.state == upload_pb2.UPLOAD_STATE_COMPLETE
            staged = await stage_uploads(tenant, ref(spec.upload_id))
            await tenant.pieces(staged.set_id, "large", into=Sink())
        finally:
            done.set()
            highest = await watching
        await tenant.release(staged.set_id)

    assert highest < RSS_LIMIT
    assert highest - before < GROWTH_LIMIT, f"grew by {(highest - before) // MIB} MiB"


class Sink(list[bytes]):
    """Discards all pieces."""

    def append(self, piece: bytes, /) -> None:
        """Discard the piece."""
