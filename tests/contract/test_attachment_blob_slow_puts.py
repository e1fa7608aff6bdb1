"""An S3 that is slow to take a file does not stop what needs rows alone, whoever waits for that file's bytes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.contract.attachment_blob_fixtures import BlobService, open_blob_service, text
from tests.contract.attachment_blob_gateway import Gateway, open_gateway
from tests.contract.attachment_blob_parts import eventually, waits_for_a_lock


@pytest.fixture
def gateway(s3: S3Endpoint) -> Iterator[Gateway]:
    with open_gateway(s3) as gateway:
        yield gateway


@pytest.fixture
async def service(databases: dict[str, ServiceDsn], gateway: Gateway, keys: Path) -> AsyncIterator[BlobService]:
    patient = {"database_max_connections": 4, "s3_read_timeout_seconds": 30}
    async with open_blob_service(databases["attachment_blob"], gateway.endpoint, keys, **patient) as service:
        yield service


async def test_releases_that_wait_for_a_slow_put_leave_connections_to_others(
    service: BlobService, gateway: Gateway, postgres: Postgres
) -> None:
    busy, other = service.tenant(), service.tenant()
    await busy.prepare()
    await other.prepare()
    common = [await busy.stage(text("a", "common")) for _ in range(8)]
    others = await other.stage(text("o", "other"))
    gateway.puts_go_on.clear()
    gateway.put_came.clear()
    staging = asyncio.ensure_future(busy.stage(text("a", "common"), text("b", "own"), timeout_seconds=50))

    await asyncio.to_thread(gateway.put_came.wait, 20)
    releases = [asyncio.ensure_future(busy.release(staged.set_id, timeout_seconds=50)) for staged in common]
    await eventually(partial(waits_for_a_lock, postgres))  # For the one that is being staged.
    await asyncio.sleep(1)  # As many of them as may have a connection have one.

    for _ in range(4):
        assert await other.get(others.set_id) == others
    assert not staging.done()

    gateway.puts_go_on.set()
    await asyncio.gather(staging, *releases)
