"""An S3 that sends single bytes delays only its readers, and only until the timeout."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.attachment_blob.fixtures import Tenant, open_blob_service, refused
from tests.support.attachment_blob.gateway import Gateway, open_gateway
from tests.support.attachment_blob.inline import text
from tests.support.waiting import eventually

THREADS = 2


@pytest.fixture
def gateway(s3: S3Endpoint) -> Iterator[Gateway]:
    with open_gateway(s3) as gateway:
        yield gateway


@pytest.fixture
async def tenant(databases: dict[str, ServiceDsn], gateway: Gateway, keys: Path) -> AsyncIterator[Tenant]:
    async with open_blob_service(
        databases["attachment_blob"],
        gateway.endpoint,
        keys,
        s3_max_threads=THREADS,
        s3_read_timeout_seconds=1.0,
    ) as service:
        tenant = service.tenant()
        await tenant.prepare()
        yield tenant


@pytest.fixture
async def slow(tenant: Tenant, gateway: Gateway) -> attachment_pb2.AttachmentSet:
    """Stage a set whose file is sent slowly, and one whose file is not."""
    slow = await tenant.stage(text("slow.txt", "s" * 4000), text("quick.txt", "q"))
    gateway.trickled_keys.add(tenant.key_of(slow.files[0].sha256))
    return slow


async def test_ReadFile__refused_if_S3_is_too_slow(
    tenant: Tenant, slow: attachment_pb2.AttachmentSet
) -> None:
    async def read_slow() -> None:
        with refused(Reason.DEPENDENCY_UNAVAILABLE, dependency="S3"):
            await tenant.read(slow.set_id, "slow.txt")

    async with asyncio.timeout(60):
        await asyncio.gather(*(read_slow() for _ in range(2 * THREADS)))
        assert await tenant.read(slow.set_id, "quick.txt") == b"q"


async def test_ReadFile__cancelled_reader_holds_no_thread(
    tenant: Tenant, slow: attachment_pb2.AttachmentSet, gateway: Gateway
) -> None:
    async def all_threads_read() -> bool:
        return gateway.trickled_count >= THREADS

    async with asyncio.timeout(60):
        readers = [asyncio.ensure_future(tenant.read(slow.set_id, "slow.txt")) for _ in range(20 * THREADS)]
        # Each thread serves a reader. The other readers wait for a thread.
        await eventually(all_threads_read)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert await tenant.read(slow.set_id, "quick.txt") == b"q"
