"""The client uploads one file from several programs, a file again, and a file that changes."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_client import attachment_uploads
from spawnmesh_client.attachment_uploads import upload_file
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fixtures import BlobService, Tenant
from tests.support.attachment_blob.uploads import (
    MIB,
    PART,
    WHOLE,
    begin,
    chunks,
    content,
    ref,
    send,
    spec_of,
    stage_uploads,
)
from tests.support.waiting import eventually

COMPLETE = upload_pb2.UPLOAD_STATE_COMPLETE


@pytest.fixture
async def tenant(blobs: BlobService) -> Tenant:
    tenant = blobs.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


@dataclass(frozen=True, slots=True)
class WatchedPeer(TokenPeer):
    """Counts streams with bytes, and calls a function after the first chunk of some."""

    streams: list[int] = field(default_factory=list)
    interruptions: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    async def unary(self, method: Any, request: Any, *, timeout_seconds: float = 60.0) -> Any:
        if isinstance(request, AsyncIterator):
            request = self._watched(request)
        return await TokenPeer.unary(self, method, request, timeout_seconds=timeout_seconds)

    async def _watched(
        self, messages: AsyncIterator[pb.UploadFileRequest]
    ) -> AsyncIterator[pb.UploadFileRequest]:
        is_first = True
        async for message in messages:
            yield message
            if message.HasField("chunk") and is_first:
                is_first = False
                self.streams.append(message.chunk.offset)
                if self.interruptions:
                    await self.interruptions.pop()()


def peer_of(tenant: Tenant) -> WatchedPeer:
    return WatchedPeer(tenant.service.peer.connection, tenant.client_token())


@pytest.mark.parametrize("size", [2 * MIB, 5 * PART + MIB], ids=["one-part", "parts"])
async def test_concurrent_programs_upload_the_same_file(tenant: Tenant, size: int) -> None:
    file = Attachment("big.bin", content(size))

    uploads = await asyncio.gather(*(upload_file(peer_of(tenant), file) for _ in range(4)))

    assert {upload.state for upload in uploads} == {COMPLETE}
    (upload_id,) = {upload.upload_id for upload in uploads}
    staged = await stage_uploads(tenant, ref(upload_id))
    assert await tenant.read(staged.set_id, "big.bin") == file.data
    assert len(tenant.object_keys()) == 1


async def test_an_upload_is_resumed_when_its_other_sender_is_silent(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment_uploads, "_STALLED_SECONDS", 2.0)
    data = content(2 * PART + MIB)
    peer = peer_of(tenant)
    async with asyncio.TaskGroup() as tasks:
        silent: list[asyncio.Task[Any]] = []

        async def other_sender() -> None:
            (row,) = await tenant.rows("uploads")
            spec = spec_of(data, upload_id=row["upload_id"], mime_type=row["mime_type"])
            stream = send(tenant, begin(spec), chunks(data, end=MIB), hold=asyncio.Event())
            silent.append(tasks.create_task(stream))
            await eventually(partial(is_taken, tenant, times=2))

        peer.interruptions.append(other_sender)
        upload = await upload_file(peer, Attachment("big.bin", data))
        for stream in silent:
            stream.cancel()

    assert upload.state == COMPLETE
    assert peer.interruptions == []


async def is_taken(tenant: Tenant, times: int) -> bool:
    (row,) = await tenant.rows("uploads")
    return bool(row["generation"] >= times)


async def test_a_file_that_is_truncated_during_its_upload_is_refused(tenant: Tenant, tmp_path: Path) -> None:
    (file := tmp_path / "app.log").write_bytes(content(2 * PART + MIB))
    peer = peer_of(tenant)

    def rotate(_name: str, done: int, _size: int) -> None:
        if done == PART + MIB:
            os.truncate(file, PART)

    async with asyncio.timeout(60):
        with pytest.raises(MeshError) as refusal:
            await upload_file(peer, file, rotate)

    assert refusal.value.reason is Reason.UPLOAD_HASH_DIFFERS
    assert refusal.value.message.startswith(
        f"app.log was changed while it was read: it ends at {PART + MIB} of"
    )
    assert peer.streams == [0]


async def test_a_repeated_upload_returns_the_same_upload_with_more_time(tenant: Tenant) -> None:
    file = Attachment("big.bin", content(2 * MIB))
    first = await upload_file(peer_of(tenant), file)
    for minutes_left in (14, -1):  # An expired upload remains until it is collected.
        async with tenant.service.database.transaction(tenant.tenant_id) as connection:
            await connection.execute(
                f"update uploads set expire_time = now() + interval '{minutes_left} minutes'"
            )

        again = await upload_file(peer_of(tenant), file)

        assert again.upload_id == first.upload_id
        assert again.expire_time.ToDatetime(tzinfo=UTC) > utc_now() + timedelta(hours=23)
    assert (await upload_file(peer_of(tenant), file)) == again, (
        "no row is written while more than half of its time is left"
    )
