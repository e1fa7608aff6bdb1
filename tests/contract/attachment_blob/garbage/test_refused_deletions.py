"""S3 refuses to delete some objects. CollectGarbage reports them and deletes all others."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from spawnmesh_attachment_blob.app import open_worker
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.process import start_process

from tests.support.attachment_blob.fakes import metric_samples
from tests.support.attachment_blob.fixtures import Tenant, key_of_hash, open_blob_service, refused
from tests.support.attachment_blob.gateway import Gateway, open_gateway
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.uploads import PART, WHOLE, begin, chunks, content, send, spec_of, upload

LOCKED, OTHER = key_of_hash("0" * 64), key_of_hash("f" * 64)


@pytest.fixture
def gateway(s3: S3Endpoint) -> Iterator[Gateway]:
    """A gateway of one test."""
    with open_gateway(s3) as gateway:
        yield gateway


@pytest.fixture
async def tenant(databases: dict[str, ServiceDsn], gateway: Gateway, keys: Path) -> AsyncIterator[Tenant]:
    """A tenant of a service behind the gateway, without a grace period."""
    more = {"collect_grace_seconds": 0, "metrics_listen": "127.0.0.1:0"}
    async with open_blob_service(databases["attachment_blob"], gateway.endpoint, keys, **more) as service:
        tenant = service.tenant()
        await tenant.prepare(**WHOLE)
        yield tenant


async def collected(tenant: Tenant) -> tuple[dict[str, int], list[str]]:
    """Return the counts of a collection and the keys that it logged as refused."""
    with structlog.testing.capture_logs() as events:
        counts = await tenant.collect()
    told = [key for event in events if event["event"] == "deletions_refused" for key in event["object_keys"]]
    return counts, sorted(told)


async def change(tenant: Tenant, statement: str) -> None:
    """Change rows without the service."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute(statement)


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidRequest"])
async def test_a_locked_orphan_does_not_stop_the_deletion_of_its_page(
    tenant: Tenant, gateway: Gateway, code: str
) -> None:
    tenant.put(LOCKED, b"x")
    tenant.put(OTHER, b"x")
    tenant.service.admin._create_multipart_upload(tenant.bucket, "sha256/aa/x", {})
    gateway.refused_keys[LOCKED] = code

    assert await collected(tenant) == (
        {"orphan_object_count": 2, "orphan_multipart_count": 1, "refused_deletion_count": 1},
        [LOCKED],
    )

    assert tenant.object_keys() == [LOCKED]
    assert tenant.unfinished_multiparts() == []
    assert await tenant.rows("blobs") == []
    gateway.refused_keys.clear()
    assert await collected(tenant) == ({"orphan_object_count": 1}, [])
    assert tenant.object_keys() == []


async def test_a_released_set_with_a_locked_object_does_not_stop_the_next(
    tenant: Tenant, gateway: Gateway
) -> None:
    sets = [await tenant.stage(text("a", f"a {n}"), text("b", f"b {n}")) for n in range(3)]
    locked = tenant.key_of(sets[0].files[0].sha256)
    gateway.refused_keys[locked] = "AccessDenied"
    await change(tenant, "update sets set state = 'RELEASED', state_time = now() - interval '1 minute'")
    tenant.put(OTHER, b"x")

    assert await collected(tenant) == (
        {"unremoved_set_count": 3, "orphan_object_count": 1, "refused_deletion_count": 1},
        [locked],
    )

    assert tenant.object_keys() == [locked]
    assert [row["object_key"] for row in await tenant.rows("blobs")] == [locked]
    with refused(Reason.DEPENDENCY_UNAVAILABLE):  # The row is deleted only after the bytes.
        await tenant.release(sets[0].set_id)
    gateway.refused_keys.clear()
    assert await tenant.release(sets[0].set_id) == 1
    assert await tenant.left() == (0, 0, 0)


async def test_unreferenced_bytes_are_deleted_except_locked_ones(tenant: Tenant, gateway: Gateway) -> None:
    staged = await tenant.stage(text("a", "locked"), text("b", "other"))
    locked = tenant.key_of(staged.files[0].sha256)
    gateway.refused_keys[locked] = "AccessDenied"
    await change(
        tenant, "delete from sets; update blobs set state = 'DELETING', state_time = now() - interval '1 s'"
    )

    assert await collected(tenant) == ({"unsettled_blob_count": 2, "refused_deletion_count": 1}, [locked])
    assert await collected(tenant) == ({"unsettled_blob_count": 1, "refused_deletion_count": 1}, [locked])

    # The bytes are stored under another key, so the call does not wait for the lock.
    again = await tenant.stage(text("a", "locked"))
    assert await tenant.read(again.set_id, "a") == b"locked"
    gateway.refused_keys.clear()
    assert await collected(tenant) == ({"orphan_object_count": 1}, [])


async def test_a_locked_expired_upload_does_not_stop_the_next(tenant: Tenant, gateway: Gateway) -> None:
    for seed in range(3):
        await send(tenant, begin(spec_of(content(PART + 1, seed))), chunks(content(PART, seed)))
    await upload(tenant, b"complete")
    first = min(await tenant.rows("uploads"), key=lambda row: str(row["upload_id"]))
    gateway.refused_keys[first["object_key"]] = "AccessDenied"
    await change(tenant, "update uploads set expire_time = now() - interval '1 second'")

    assert await collected(tenant) == (
        {"expired_upload_count": 4, "refused_deletion_count": 1},
        [first["object_key"]],
    )

    assert [row["upload_id"] for row in await tenant.rows("uploads")] == [first["upload_id"]]
    gateway.refused_keys.clear()
    assert await collected(tenant) == ({"expired_upload_count": 1}, [])
    assert await tenant.left() == (0, 0, 0)


async def test_other_failures_of_S3_end_the_collection(tenant: Tenant, gateway: Gateway) -> None:
    tenant.put(LOCKED, b"x")
    gateway.refused_keys[LOCKED] = "SlowDown"
    settings = tenant.service.settings
    async with (
        start_process("attachment-blob", settings) as process,
        open_worker(process, settings) as worker,
    ):
        with pytest.raises(MeshError) as failed:
            await worker.collector.collect(tenant.tenant_id, dry_run=False)
    assert failed.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert failed.value.facts["dependency"] == "S3"


async def test_refused_deletions_are_counted_in_a_metric(tenant: Tenant, gateway: Gateway) -> None:
    tenant.put(LOCKED, b"x")
    gateway.refused_keys[LOCKED] = "AccessDenied"
    settings = tenant.service.settings
    async with (
        start_process("attachment-blob", settings) as process,
        open_worker(process, settings) as worker,
    ):
        await worker.collector.collect(tenant.tenant_id, dry_run=False)
        samples = metric_samples(process.metrics.port)

    assert samples['spawnmesh_garbage_items_total{spawnmesh_garbage_kind="refused_deletion"}'] == 1
