"""Streams of uploads have a limiter: a slow sender loses its permit, and waiters get it in time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_attachment_blob.operations import upload_limiter
from spawnmesh_client.attachment_uploads import upload_file
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.attachment_blob.fixtures import KIB, BlobService, Tenant, open_blob_service, refused
from tests.support.attachment_blob.uploads import (
    MIB,
    PART,
    WHOLE,
    begin,
    chunk,
    chunks,
    content,
    finish,
    get_upload,
    send,
    spec_of,
    upload,
)
from tests.support.waiting import eventually

COMPLETE = upload_pb2.UPLOAD_STATE_COMPLETE
Service = Callable[..., AbstractAsyncContextManager[BlobService]]


@pytest.fixture
def service(databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path) -> Service:
    """Opens a service with these settings."""
    return partial(open_blob_service, databases["attachment_blob"], s3, keys)


async def prepared(service: BlobService) -> Tenant:
    tenant = service.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


async def is_sending(tenant: Tenant) -> bool:
    return any(row["generation"] for row in await tenant.rows("uploads"))


async def drip(tenant: Tenant) -> Any:
    """Send one byte at a time, with a query between two bytes, until the stream is ended."""
    data = content(64 * KIB)

    async def dripping() -> AsyncIterator[pb.UploadFileRequest]:
        yield begin(spec_of(data))
        for offset in range(len(data)):
            yield chunk(offset, data[offset : offset + 1])
            await is_sending(tenant)

    return await tenant.call("UploadFile", dripping(), token=tenant.client_token(), timeout_seconds=90)


@dataclass(frozen=True, slots=True)
class CountingPeer(TokenPeer):
    """Records the calls that begin."""

    begun: list[Any] = field(default_factory=list)

    async def unary(self, method: Any, request: Any, *, timeout_seconds: float = 60.0) -> Any:
        self.begun.append(method)
        return await TokenPeer.unary(self, method, request, timeout_seconds=timeout_seconds)

    async def has_retried(self) -> bool:
        """Return whether calls followed that of the spec and that of the bytes."""
        return len(self.begun) > 2


async def test_UploadFile__slow_senders_lose_their_permits(service: Service) -> None:
    async with service(upload_max_streams=2, upload_idle_seconds=2.0) as running:
        drippers = [await prepared(running) for _ in range(2)]
        dripping = [asyncio.ensure_future(drip(tenant)) for tenant in drippers]
        for tenant in drippers:
            await eventually(partial(is_sending, tenant))

        assert (await upload(await prepared(running), b"quick")).state == COMPLETE

        for stream in dripping:
            with refused(Reason.DEADLINE_EXCEEDED) as refusals:
                await stream
            assert "64 KiB a second" in refusals[0].message


async def test_UploadFile__waiting_stream_is_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_limiter, "_WAIT_SECONDS", 0.5)
    monkeypatch.setattr(upload_limiter, "_RETRY_SECONDS", 0.1)
    async with service(upload_max_streams=1) as running:
        holder, waiter = await prepared(running), await prepared(running)
        hold = asyncio.Event()
        holding = asyncio.ensure_future(
            send(holder, begin(spec_of(content(10))), [chunk(0, content(10))], hold=hold)
        )
        await eventually(partial(is_sending, holder))

        with refused(Reason.POOL_EXHAUSTED, pool="uploads") as refusals:
            await upload(waiter, b"waits")
        assert refusals[0].retry_after_seconds

        peer = CountingPeer(running.peer.connection, waiter.client_token())
        retrying = asyncio.ensure_future(upload_file(peer, Attachment("a.txt", b"retrying")))
        await eventually(peer.has_retried)
        assert not retrying.done()
        hold.set()
        await holding
        assert (await retrying).state == COMPLETE


async def test_UploadFile__spec_alone_needs_no_permit(service: Service) -> None:
    async with service(upload_max_streams=1) as running:
        holder, other = await prepared(running), await prepared(running)
        hold = asyncio.Event()
        holding = asyncio.ensure_future(
            send(holder, begin(spec_of(content(10))), [chunk(0, content(10))], hold=hold)
        )
        await eventually(partial(is_sending, holder))

        for tenant in (holder, other):
            asked = await send(tenant, begin(spec_of(b"not sent yet")))
            assert (asked.state, asked.durable_bytes) == (upload_pb2.UPLOAD_STATE_OPEN, 0)

        assert not holding.done()
        hold.set()
        await holding


async def test_UploadFile__stream_behind_a_full_queue_is_refused_at_once(service: Service) -> None:
    async with service(upload_max_streams=1) as running:
        tenant, other = await prepared(running), await prepared(running)
        data = content(2 * MIB)
        hold = asyncio.Event()
        streams = [
            asyncio.ensure_future(
                send(tenant, begin(spec_of(data, size_bytes=3 * MIB)), [chunk(0, data)], hold=hold)
            )
            for _ in range(20)
        ]

        async def most_are_refused() -> bool:
            return sum(stream.done() for stream in streams) == 20 - 1 - 8

        await eventually(most_are_refused)
        for stream in filter(asyncio.Future.done, streams):
            with refused(Reason.POOL_EXHAUSTED, pool="uploads"):
                await stream
        waiting = asyncio.ensure_future(upload(other, b"in turn"))
        hold.set()
        assert (await waiting).state == COMPLETE
        await asyncio.gather(*streams, return_exceptions=True)


async def test_UploadFile__large_file_yields_its_permit_and_keeps_its_durable_bytes(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_limiter, "_TURN_SECONDS", 0.0)
    monkeypatch.setattr(upload_limiter, "_QUEUED_STREAMS", 1)
    async with service(upload_max_streams=1) as running:
        sender, waiter = await prepared(running), await prepared(running)
        data = content(3 * PART)
        spec = spec_of(data)
        go_on = asyncio.Event()

        async def stream() -> AsyncIterator[pb.UploadFileRequest]:
            yield begin(spec)
            for piece in chunks(data):
                if piece.chunk.offset >= PART + 2 * MIB:
                    await go_on.wait()
                yield piece
            yield finish()

        call = partial(sender.call, token=sender.client_token(), timeout_seconds=60)
        sending = asyncio.ensure_future(call("UploadFile", stream()))
        await eventually(partial(has_parts, sender))
        both = [asyncio.ensure_future(upload(waiter, b"a few bytes")) for _ in range(2)]
        [second], [waiting] = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        with refused(Reason.POOL_EXHAUSTED):  # The queue is full: the other one waits in it.
            await second
        assert not sending.done()
        go_on.set()

        with refused(Reason.POOL_EXHAUSTED, pool="uploads") as refusals:
            await sending
        assert refusals[0].retry_after_seconds
        assert (await waiting).state == COMPLETE
        assert (await get_upload(sender, spec.upload_id)).durable_bytes == 2 * PART
        assert (await send(sender, begin(spec), chunks(data, start=2 * PART), finish())).state == COMPLETE


async def has_parts(tenant: Tenant) -> bool:
    return bool(await tenant.rows("upload_parts"))


async def test_clients_with_large_files_share_one_permit(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_limiter, "_TURN_SECONDS", 0.0)
    monkeypatch.setattr(upload_limiter, "_TURN_RETRY_SECONDS", 0.1)
    async with service(upload_max_streams=1) as running:
        tenants = [await prepared(running) for _ in range(3)]
        sending = [
            upload_file(
                TokenPeer(running.peer.connection, tenant.client_token()),
                Attachment("a.bin", content(4 * PART, seed)),
            )
            for seed, tenant in enumerate(tenants)
        ]

        assert {upload.state for upload in await asyncio.gather(*sending)} == {COMPLETE}
        assert max([row["generation"] for tenant in tenants for row in await tenant.rows("uploads")]) > 1
