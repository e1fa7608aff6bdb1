"""Places to send uploads at: who dawdles loses one, and who waits for one is not kept waiting for good."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_attachment_blob import upload_places
from spawnmesh_client.attachment_uploads import upload_file
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.contract.attachment_blob_fixtures import BlobService, Tenant, open_blob_service, refused
from tests.contract.attachment_blob_parts import eventually
from tests.contract.attachment_blob_uploads import begin, chunk, content, send, spec_of, upload

COMPLETE = upload_pb2.UPLOAD_STATE_COMPLETE
Service = Callable[..., AbstractAsyncContextManager[BlobService]]


@pytest.fixture
def service(databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path) -> Service:
    """Opens a service with these settings."""
    return partial(open_blob_service, databases["attachment_blob"], s3, keys)


async def prepared(service: BlobService) -> Tenant:
    tenant = service.tenant()
    await tenant.prepare()
    return tenant


async def is_sending(tenant: Tenant) -> bool:
    return any(row["generation"] for row in await tenant.rows("uploads"))


async def drip(tenant: Tenant) -> Any:
    """Sends a byte now and then, for a minute."""
    data = content(300)

    async def dripping() -> AsyncIterator[pb.UploadFileRequest]:
        yield begin(spec_of(data))
        for offset in range(len(data)):
            yield chunk(offset, data[offset : offset + 1])
            await asyncio.sleep(0.2)

    return await tenant.call("UploadFile", dripping(), token=tenant.client_token(), timeout_seconds=90)


async def test_UploadFile__senders_that_drip_lose_their_places(service: Service) -> None:
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


async def test_UploadFile__who_waits_for_a_place_is_sent_away(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_places, "_WAIT_SECONDS", 0.5)
    async with service(upload_max_streams=1) as running:
        holder, waiter = await prepared(running), await prepared(running)
        hold = asyncio.Event()
        holding = asyncio.ensure_future(send(holder, begin(spec_of(content(10))), [chunk(0, content(10))], hold=hold))
        await eventually(partial(is_sending, holder))

        with refused(Reason.POOL_EXHAUSTED, pool="uploads") as refusals:
            await upload(waiter, b"waits")
        assert refusals[0].retry_after_seconds

        peer = TokenPeer(running.peer, waiter.client_token())
        patient = asyncio.ensure_future(upload_file(peer, Attachment("a.txt", b"patient")))
        await asyncio.sleep(2)  # Long enough to be sent away, and to come again.
        assert not patient.done()
        hold.set()
        await holding
        assert (await patient).state == COMPLETE
