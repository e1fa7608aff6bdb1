"""A slow put to S3 does not stop calls that need only rows, even if others wait for its bytes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.attachment_blob.fakes import waits_for_a_lock
from tests.support.attachment_blob.fixtures import BlobService, open_blob_service
from tests.support.attachment_blob.gateway import Gateway, open_gateway
from tests.support.attachment_blob.inline import text
from tests.support.waiting import eventually


@pytest.fixture
def gateway(s3: S3Endpoint) -> Iterator[Gateway]:
    with open_gateway(s3) as gateway:
        yield gateway


@pytest.fixture
async def service(
    databases: dict[str, ServiceDsn], gateway: Gateway, keys: Path
) -> AsyncIterator[BlobService]:
    slow_s3 = {"database_max_connections": 6, "s3_read_timeout_seconds": 300}
    async with open_blob_service(databases["attachment_blob"], gateway.endpoint, keys, **slow_s3) as service:
        yield service


async def test_releases_that_wait_for_a_slow_put_do_not_use_all_connections(
    service: BlobService, gateway: Gateway, postgres: Postgres
) -> None:
    busy, other = service.tenant(), service.tenant()
    await busy.prepare()
    await other.prepare()
    common = [await busy.stage(text("a", "common")) for _ in range(8)]
    others = await other.stage(text("o", "other"))
    gateway.puts_go_on.clear()
    gateway.put_came.clear()
    staging = asyncio.ensure_future(busy.stage(text("a", "common"), text("b", "own"), timeout_seconds=90))

    await asyncio.to_thread(gateway.put_came.wait, 60)
    releases = [asyncio.ensure_future(busy.release(staged.set_id, timeout_seconds=90)) for staged in common]
    # One release waits for the set that is being staged.
    await eventually(partial(waits_for_a_lock, postgres))

    # The service has received the releases before these calls.
    for _ in range(20):
        assert await other.get(others.set_id) == others
    assert not staging.done()

    gateway.puts_go_on.set()
    await asyncio.gather(staging, *releases)
