"""An S3 that sends a byte now and then holds nobody but who reads from it, and not for long."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.contract.attachment_blob_fixtures import Tenant, open_blob_service, refused, text
from tests.contract.attachment_blob_gateway import Gateway, open_gateway

THREADS = 2


@pytest.fixture
def gateway(s3: S3Endpoint) -> Iterator[Gateway]:
    with open_gateway(s3) as gateway:
        yield gateway


@pytest.fixture
async def tenant(databases: dict[str, ServiceDsn], gateway: Gateway, keys: Path) -> AsyncIterator[Tenant]:
    async with open_blob_service(
        databases["attachment_blob"], gateway.endpoint, keys, s3_max_threads=THREADS
    ) as service:
        tenant = service.tenant()
        await tenant.prepare()
        yield tenant


@pytest.fixture
async def slow(tenant: Tenant, gateway: Gateway) -> attachment_pb2.AttachmentSet:
    """A set whose file comes slowly; beside it is one that does not."""
    slow = await tenant.stage(text("slow.txt", "s" * 4000), text("quick.txt", "q"))
    gateway.trickled_keys.add(tenant.key_of(slow.files[0].sha256))
    return slow


async def test_ReadFile__is_refused_where_S3_is_as_good_as_silent(
    tenant: Tenant, slow: attachment_pb2.AttachmentSet
) -> None:
    async def read_slow() -> None:
        with refused(Reason.DEPENDENCY_UNAVAILABLE, dependency="S3"):
            await tenant.read(slow.set_id, "slow.txt")

    async with asyncio.timeout(60):
        await asyncio.gather(*(read_slow() for _ in range(2 * THREADS)))
        assert await tenant.read(slow.set_id, "quick.txt") == b"q"


async def test_ReadFile__no_thread_is_held_for_a_reader_that_has_gone(
    tenant: Tenant, slow: attachment_pb2.AttachmentSet
) -> None:
    async with asyncio.timeout(60):
        readers = [asyncio.ensure_future(tenant.read(slow.set_id, "slow.txt")) for _ in range(20 * THREADS)]
        await asyncio.sleep(1)  # Some are being served, and the others wait for a thread.
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert await tenant.read(slow.set_id, "quick.txt") == b"q"
