"""Readers have places and a pace: who does not take what comes holds neither for long."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_attachment_blob import reading
from spawnmesh_client.attachment_sets import download_file
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.wire_errors import error_from

from tests.contract.attachment_blob_fixtures import BlobService, Tenant, open_blob_service, refused
from tests.contract.attachment_blob_uploads import MIB, WHOLE, content, ref, stage_uploads, upload

DATA = content(8 * MIB)  # Much more than connections hold for who does not read.
Service = Callable[..., AbstractAsyncContextManager[BlobService]]


@pytest.fixture
def service(databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path) -> Service:
    """Opens a service with these settings."""
    return partial(open_blob_service, databases["attachment_blob"], s3, keys)


async def with_file(service: BlobService) -> tuple[Tenant, str]:
    """A tenant and its set of one large file."""
    tenant = service.tenant()
    await tenant.prepare(**WHOLE)
    staged = await stage_uploads(tenant, ref((await upload(tenant, DATA)).upload_id))
    return tenant, staged.set_id


async def begin(tenant: Tenant, set_id: str) -> Any:
    """A call that has its first piece, and takes no more until it is asked to."""
    metadata = (("authorization", f"Bearer {tenant.client_token()}"),)
    call = tenant.stub.ReadFile(pb.ReadFileRequest(set_id=set_id, name="big.bin"), metadata=metadata)
    await call.read()
    return call


async def rest_of(call: Any) -> AsyncIterator[bytes]:
    try:
        while (piece := await call.read()) is not grpc.aio.EOF:
            yield piece.data
    except grpc.aio.AioRpcError as error:
        raise error_from("attachment-blob", error) from None


async def test_ReadFile__a_reader_that_takes_nothing_is_ended_and_goes_on_where_it_was(service: Service) -> None:
    async with service(read_idle_seconds=1.0) as running:
        tenant, set_id = await with_file(running)
        call = await begin(tenant, set_id)
        await asyncio.sleep(2.5)

        came = 256 * 1024
        with refused(Reason.DEADLINE_EXCEEDED) as refusals:
            async for piece in rest_of(call):
                came += len(piece)

        assert "64 KiB a second" in refusals[0].message
        assert came < len(DATA)
        assert await tenant.read(set_id, "big.bin", offset=came) == DATA[came:]


async def test_ReadFile__one_tenants_readers_leave_room_for_other_tenants(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reading, "_WAIT_SECONDS", 0.5)
    monkeypatch.setattr(reading, "_AGAIN_SECONDS", 0.2)
    async with service(read_max_streams=2, read_idle_seconds=4.0) as running:
        (tenant, set_id), (other, others_id) = await with_file(running), await with_file(running)
        dawdling = await begin(tenant, set_id)

        with refused(Reason.POOL_EXHAUSTED, pool="reads") as refusals:
            await tenant.read(set_id, "big.bin")
        assert refusals[0].retry_after_seconds
        assert await other.read(others_id, "big.bin") == DATA

        file = (await tenant.get(set_id)).files[0]
        brought = await download_file(TokenPeer(running.peer, tenant.client_token()), set_id, file, tmp_path)
        assert brought.read_bytes() == DATA
        with pytest.raises(MeshError):
            async for _ in rest_of(dawdling):
                pass


async def test_ReadFile__a_reader_that_goes_away_leaves_its_place(service: Service) -> None:
    async with service(read_max_streams=1) as running:
        tenant, set_id = await with_file(running)
        for _ in range(3):
            (await begin(tenant, set_id)).cancel()
        assert await tenant.read(set_id, "big.bin") == DATA
