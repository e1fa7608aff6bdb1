"""The quotas of a tenant for open and for finished uploads, by count and by bytes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.attachment_blob.fakes import waits_for_a_lock
from tests.support.attachment_blob.fixtures import BlobService, Tenant, open_blob_service, refused
from tests.support.attachment_blob.uploads import (
    PART,
    WHOLE,
    begin,
    chunks,
    content,
    finish,
    send,
    spec_of,
    upload,
)
from tests.support.waiting import eventually

OPEN, COMPLETE = upload_pb2.UPLOAD_STATE_OPEN, upload_pb2.UPLOAD_STATE_COMPLETE
MOST_BYTES = 3 * PART


@pytest.fixture(scope="module")
async def narrow(databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path) -> AsyncIterator[BlobService]:
    """A service with a small quota for open uploads."""
    more = {"upload_max_open": 3, "upload_max_open_bytes": MOST_BYTES, "collect_grace_seconds": 0}
    async with open_blob_service(databases["attachment_blob"], s3, keys, **more) as service:
        yield service


@pytest.fixture
async def tenant(narrow: BlobService) -> Tenant:
    """A tenant of that service."""
    tenant = narrow.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


async def open_one(tenant: Tenant, data: bytes) -> upload_pb2.UploadSpec:
    """Begin an upload and return its spec."""
    spec = spec_of(data)
    assert (await send(tenant, begin(spec))).state == OPEN
    return spec


async def test_open_uploads_are_limited_by_count(tenant: Tenant, narrow: BlobService) -> None:
    specs = [await open_one(tenant, content(10, seed)) for seed in range(3)]

    with refused(Reason.BUDGET_EXCEEDED, budget="open_uploads", limit="3", open="3") as errors:
        await send(tenant, begin(spec_of(b"fourth")))

    assert errors[0].status is Status.RESOURCE_EXHAUSTED
    assert errors[0].retry_after_seconds
    assert len(await tenant.rows("uploads")) == 3
    other = narrow.tenant()
    await other.prepare(**WHOLE)
    await open_one(other, b"fourth")
    # An open upload continues, and frees its quota when it is done.
    assert (await send(tenant, begin(specs[0]))).state == OPEN
    assert (await send(tenant, begin(specs[0]), chunks(content(10, 0)), finish())).state == COMPLETE
    await open_one(tenant, b"fourth")


async def test_open_uploads_are_limited_by_bytes(tenant: Tenant) -> None:
    first = await open_one(tenant, content(2 * PART))

    facts = {"budget": "open_upload_bytes", "limit_bytes": str(MOST_BYTES), "open_bytes": str(2 * PART)}
    with refused(Reason.BUDGET_EXCEEDED, **facts, size_bytes=str(PART + 1)):
        await send(tenant, begin(spec_of(content(PART + 1))))
    await open_one(tenant, content(PART, 1))

    assert (await send(tenant, begin(first), chunks(content(2 * PART)), finish())).state == COMPLETE
    assert (await upload(tenant, content(2 * PART, 2))).state == COMPLETE


async def test_stored_bytes_need_no_quota(tenant: Tenant) -> None:
    await upload(tenant, b"known")
    for seed in range(3):
        await open_one(tenant, content(10, seed))

    assert (await send(tenant, begin(spec_of(b"known", name="other")))).state == COMPLETE


async def test_an_upload_uses_quota_until_its_bytes_are_deleted(tenant: Tenant) -> None:
    for seed in range(3):
        await open_one(tenant, content(10, seed))
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("update uploads set state = 'ABORTING'")

    with refused(Reason.BUDGET_EXCEEDED):
        await send(tenant, begin(spec_of(b"fourth")))
    assert await tenant.collect() == {"expired_upload_count": 3}

    await open_one(tenant, b"fourth")


async def test_one_of_two_concurrent_uploads_gets_the_last_quota(tenant: Tenant, postgres: Postgres) -> None:
    for seed in range(2):
        await open_one(tenant, content(10, seed))
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute(
            "lock table uploads in share row exclusive mode"
        )  # Reads succeed while new uploads wait.
        beginning = [
            asyncio.ensure_future(send(tenant, begin(spec_of(content(10, seed))))) for seed in (3, 4)
        ]
        await eventually(lambda: waits_for_a_lock(postgres, 2))
    results = await asyncio.gather(*beginning, return_exceptions=True)

    (error,) = [result for result in results if isinstance(result, MeshError)]
    assert error.reason is Reason.BUDGET_EXCEEDED
    assert len(await tenant.rows("uploads")) == 3


async def test_concurrent_streams_of_one_upload_use_quota_once(tenant: Tenant, postgres: Postgres) -> None:
    for seed in range(2):
        await open_one(tenant, content(10, seed))
    spec = spec_of(b"third")
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("lock table uploads in share row exclusive mode")
        beginning = [asyncio.ensure_future(send(tenant, begin(spec))) for _ in range(2)]
        await eventually(lambda: waits_for_a_lock(postgres, 2))

    assert [found.state for found in await asyncio.gather(*beginning)] == [OPEN, OPEN]


async def test_replicas_share_the_quota(
    tenant: Tenant, databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path
) -> None:
    more = {"upload_max_open": 3, "upload_max_open_bytes": MOST_BYTES}
    async with open_blob_service(databases["attachment_blob"], s3, keys, **more) as second:
        both = [tenant, Tenant(second, tenant.tenant_id)]
        beginning = [send(both[n % 2], begin(spec_of(content(10, n)))) for n in range(12)]
        results = await asyncio.gather(*beginning, return_exceptions=True)

    reasons = [result.reason for result in results if isinstance(result, MeshError)]
    assert reasons == [Reason.BUDGET_EXCEEDED] * 9
    assert len(await tenant.rows("uploads")) == 3


@pytest.fixture(scope="module")
async def scant(databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path) -> AsyncIterator[BlobService]:
    """A service with a small quota for finished uploads."""
    more = {"upload_max_finished": 3, "upload_max_finished_bytes": MOST_BYTES, "collect_grace_seconds": 0}
    async with open_blob_service(databases["attachment_blob"], s3, keys, **more) as service:
        yield service


@pytest.fixture
async def sender(scant: BlobService) -> Tenant:
    """A tenant of that service."""
    tenant = scant.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


async def test_finished_uploads_are_limited_by_count(sender: Tenant, scant: BlobService) -> None:
    finished = [await upload(sender, content(10, seed)) for seed in range(3)]

    with refused(Reason.BUDGET_EXCEEDED, budget="finished_uploads", limit="3", finished="3") as errors:
        await send(sender, begin(spec_of(b"fourth")))
    # The retry time is when the first of them expires, a day after it was finished.
    assert 23 * 3600 < (errors[0].retry_after_seconds or 0) <= 24 * 3600
    with refused(Reason.BUDGET_EXCEEDED, budget="finished_uploads"):
        await send(sender, begin(spec_of(content(10, 0), name="known")))
    assert len(await sender.rows("uploads")) == 3
    again = spec_of(content(10, 1))
    again.upload_id = finished[1].upload_id
    assert (await send(sender, begin(again))).state == COMPLETE
    other = scant.tenant()
    await other.prepare(**WHOLE)
    await upload(other, b"fourth")

    async with scant.database.transaction(sender.tenant_id) as connection:
        await connection.execute(
            "update uploads set expire_time = now() where upload_id = %s", [again.upload_id]
        )
    assert await sender.collect() == {"expired_upload_count": 1}
    await upload(sender, b"fourth")


async def test_finished_uploads_are_limited_by_bytes(sender: Tenant) -> None:
    waiting = await open_one(sender, content(PART, 1))
    await upload(sender, content(2 * PART))
    await upload(sender, content(2 * PART), name="the same bytes, which are stored once")

    facts = {
        "budget": "finished_upload_bytes",
        "limit_bytes": str(MOST_BYTES),
        "finished_bytes": str(2 * PART),
    }
    with refused(Reason.BUDGET_EXCEEDED, **facts, size_bytes=str(PART + 1)):
        await send(sender, begin(spec_of(content(PART + 1))))
    # Uploads that were begun before continue.
    assert (await send(sender, begin(waiting), chunks(content(PART, 1)), finish())).state == COMPLETE
