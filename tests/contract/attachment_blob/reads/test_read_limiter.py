"""Readers have a limiter and an idle timeout: a reader that takes nothing does not block others."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_attachment_blob.operations import file_reader
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_client.attachment_sets import download_file
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.attachment_blob.fixtures import BlobService, Tenant, open_blob_service, refused
from tests.support.attachment_blob.uploads import MIB, WHOLE, content, ref, stage_uploads, upload

DATA = content(8 * MIB)  # Connections buffer much less than this for a reader that takes nothing.
Service = Callable[..., AbstractAsyncContextManager[BlobService]]


@pytest.fixture
def service(databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path) -> Service:
    """Opens a service with these settings."""
    return partial(open_blob_service, databases["attachment_blob"], s3, keys)


async def with_file(service: BlobService) -> tuple[Tenant, str]:
    """Stage a set of one large file."""
    tenant = service.tenant()
    await tenant.prepare(**WHOLE)
    staged = await stage_uploads(tenant, ref((await upload(tenant, DATA)).upload_id))
    return tenant, staged.set_id


async def begin(tenant: Tenant, set_id: str) -> Any:
    """Begin a call, take its first piece, and take no more until the test says so."""
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


async def test_ReadFile__idle_reader_is_ended_and_resumes_at_its_offset(
    service: Service,
) -> None:
    async with service(read_max_streams=1, read_idle_seconds=3.0) as running:
        tenant, set_id = await with_file(running)
        call = await begin(tenant, set_id)
        # The next reader gets the only permit once the idle reader is ended.
        assert await tenant.read(set_id, "big.bin") == DATA

        came = 256 * 1024
        with refused(Reason.DEADLINE_EXCEEDED) as refusals:
            async for piece in rest_of(call):
                came += len(piece)

        assert "64 KiB a second" in refusals[0].message
        assert came < len(DATA)
        assert await tenant.read(set_id, "big.bin", offset=came) == DATA[came:]


async def test_ReadFile__readers_of_one_tenant_do_not_block_other_tenants(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(file_reader, "_WAIT_SECONDS", 0.5)
    monkeypatch.setattr(file_reader, "_RETRY_SECONDS", 0.2)
    async with service(read_max_streams=2, read_idle_seconds=2.0) as running:
        (tenant, set_id), (other, others_id) = await with_file(running), await with_file(running)
        dawdling = await begin(tenant, set_id)

        with refused(Reason.POOL_EXHAUSTED, pool="reads") as refusals:
            await tenant.read(set_id, "big.bin")
        assert refusals[0].retry_after_seconds
        assert await other.read(others_id, "big.bin") == DATA

        file = (await tenant.get(set_id)).files[0]
        brought = await download_file(
            TokenPeer(running.peer.connection, tenant.client_token()), set_id, file, tmp_path
        )
        assert brought.read_bytes() == DATA
        with pytest.raises(MeshError):
            async for _ in rest_of(dawdling):
                pass


async def test_ReadFile__cancelled_reader_releases_its_permit(service: Service) -> None:
    async with service(read_max_streams=1) as running:
        tenant, set_id = await with_file(running)
        for _ in range(3):
            (await begin(tenant, set_id)).cancel()
        assert await tenant.read(set_id, "big.bin") == DATA
