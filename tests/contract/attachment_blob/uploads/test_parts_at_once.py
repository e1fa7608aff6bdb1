"""Parts of an upload are put at the same time, and recorded in their order."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.attachment_blob.fixtures import Tenant, open_blob_service, refused
from tests.support.attachment_blob.gateway import Gateway, open_gateway
from tests.support.attachment_blob.uploads import (
    PART,
    WHOLE,
    begin,
    chunks,
    content,
    finish,
    get_upload,
    ref,
    send,
    spec_of,
    stage_uploads,
)
from tests.support.waiting import eventually

DATA = content(5 * PART + 3)
COMPLETE = upload_pb2.UPLOAD_STATE_COMPLETE


@pytest.fixture
def gateway(s3: S3Endpoint) -> Iterator[Gateway]:
    with open_gateway(s3) as gateway:
        yield gateway


@pytest.fixture
async def tenant(databases: dict[str, ServiceDsn], gateway: Gateway, keys: Path) -> AsyncIterator[Tenant]:
    async with open_blob_service(databases["attachment_blob"], gateway.endpoint, keys) as service:
        tenant = service.tenant()
        await tenant.prepare(**WHOLE)
        yield tenant


def put_parts(gateway: Gateway) -> list[list[int]]:
    """Return the numbers of the parts of each upload whose puts have arrived."""
    return sorted(map(sorted, gateway.parts_put().values()))


async def durable_bytes(tenant: Tenant, spec: upload_pb2.UploadSpec) -> int:
    return (await get_upload(tenant, spec.upload_id)).durable_bytes


async def read_back(tenant: Tenant, spec: upload_pb2.UploadSpec) -> bytes:
    staged = await stage_uploads(tenant, ref(spec.upload_id))
    return await tenant.read(staged.set_id, "big.bin")


async def test_UploadFile__parts_behind_a_slow_one_are_put_and_not_durable_before_it(
    tenant: Tenant, gateway: Gateway
) -> None:
    gateway.held_part, spec = 1, spec_of(DATA)
    sending = asyncio.ensure_future(send(tenant, begin(spec), chunks(DATA), finish()))
    await eventually(lambda: put_parts(gateway) == [[1, 2, 3, 4]])
    assert await durable_bytes(tenant, spec) == 0
    gateway.part_goes_on.set()
    assert (await sending).state == COMPLETE
    assert await read_back(tenant, spec) == DATA


async def test_UploadFile__behind_a_part_that_failed_none_is_durable(
    tenant: Tenant, gateway: Gateway
) -> None:
    gateway.held_part = gateway.refused_part = 2
    spec = spec_of(DATA)
    sending = asyncio.ensure_future(send(tenant, begin(spec), chunks(DATA), finish()))
    await eventually(lambda: put_parts(gateway) == [[1, 2, 3, 4, 5]])
    gateway.part_goes_on.set()
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await sending
    assert await durable_bytes(tenant, spec) == PART
    gateway.refused_part = 0
    resumed = await send(tenant, begin(spec), chunks(DATA, start=PART), finish())
    assert resumed.state == COMPLETE
    assert await read_back(tenant, spec) == DATA


async def test_UploadFile__parts_that_are_put_when_the_stream_breaks_become_durable(
    tenant: Tenant, gateway: Gateway
) -> None:
    gateway.held_part, spec = 1, spec_of(DATA)
    sending = asyncio.ensure_future(send(tenant, begin(spec), chunks(DATA), hold=asyncio.Event()))
    await eventually(lambda: put_parts(gateway) == [[1, 2, 3, 4]])
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    gateway.part_goes_on.set()

    async def are_durable() -> bool:
        return await durable_bytes(tenant, spec) == 4 * PART

    await eventually(are_durable)
    assert (await send(tenant, begin(spec), chunks(DATA, start=4 * PART), finish())).state == COMPLETE
    assert await read_back(tenant, spec) == DATA


async def test_UploadFile__a_replica_has_a_limited_number_of_spare_buffers(
    tenant: Tenant, gateway: Gateway
) -> None:
    """The third upload has no other buffers than its own two."""
    gateway.held_part = 1
    files = [content(5 * PART + 3, seed) for seed in (1, 2, 3)]
    sending = []
    for parts in ([[1, 2, 3, 4]], [[1, 2, 3, 4]] * 2, [[1, 2], *[[1, 2, 3, 4]] * 2]):
        data = files[len(sending)]
        sending.append(asyncio.ensure_future(send(tenant, begin(spec_of(data)), chunks(data), finish())))
        await eventually(partial(lambda expected: put_parts(gateway) == expected, parts))
    gateway.part_goes_on.set()
    assert [one.state for one in await asyncio.gather(*sending)] == [COMPLETE] * 3

    gateway.put_paths.clear()
    gateway.part_goes_on.clear()
    again = asyncio.ensure_future(send(tenant, begin(spec_of(DATA)), chunks(DATA), finish()))
    await eventually(lambda: put_parts(gateway) == [[1, 2, 3, 4]])
    gateway.part_goes_on.set()
    assert (await again).state == COMPLETE
