"""CollectGarbage where S3 will not delete some objects, as under an object lock: everything else goes, and what stays is told."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from spawnmesh_attachment_blob.app import open_worker
from spawnmesh_attachment_blob.domain.sets import object_key
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.process import start_process

from tests.contract.attachment_blob_fixtures import Tenant, open_blob_service, refused, text
from tests.contract.attachment_blob_gateway import Gateway, open_gateway
from tests.contract.attachment_blob_uploads import PART, WHOLE, begin, chunks, content, send, spec_of, upload
from tests.contract.test_attachment_blob_metrics import _samples

LOCKED, OTHER = object_key("0" * 64), object_key("f" * 64)


@pytest.fixture
def gateway(s3: S3Endpoint) -> Iterator[Gateway]:
    """A way to S3 of one test's own."""
    with open_gateway(s3) as gateway:
        yield gateway


@pytest.fixture
async def tenant(databases: dict[str, ServiceDsn], gateway: Gateway, keys: Path) -> AsyncIterator[Tenant]:
    """A tenant of a service that goes that way and knows no grace."""
    more = {"collect_grace_seconds": 0, "metrics_listen": "127.0.0.1:0"}
    async with open_blob_service(databases["attachment_blob"], gateway.endpoint, keys, **more) as service:
        tenant = service.tenant()
        await tenant.prepare(**WHOLE)
        yield tenant


async def collected(tenant: Tenant) -> tuple[dict[str, int], list[str]]:
    """What a collection counted, and the keys of which it said that they were refused."""
    with structlog.testing.capture_logs() as events:
        counts = await tenant.collect()
    told = [key for event in events if event["event"] == "deletions_refused" for key in event["object_keys"]]
    return counts, sorted(told)


async def change(tenant: Tenant, statement: str) -> None:
    """Changes rows behind the service's back."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute(statement)


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidRequest"])
async def test_a_locked_orphan_stays_and_the_others_of_its_page_go(tenant: Tenant, gateway: Gateway, code: str) -> None:
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


async def test_a_released_set_with_a_locked_object_does_not_hold_up_the_next(tenant: Tenant, gateway: Gateway) -> None:
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
    with refused(Reason.DEPENDENCY_UNAVAILABLE):  # As it was promised: not before the bytes are gone.
        await tenant.release(sets[0].set_id)
    gateway.refused_keys.clear()
    assert await tenant.release(sets[0].set_id) == 1
    assert await tenant.left() == (0, 0, 0)


async def test_bytes_that_nobody_refers_to_go_but_for_the_locked_ones(tenant: Tenant, gateway: Gateway) -> None:
    staged = await tenant.stage(text("a", "locked"), text("b", "other"))
    locked = tenant.key_of(staged.files[0].sha256)
    gateway.refused_keys[locked] = "AccessDenied"
    await change(tenant, "delete from sets; update blobs set state = 'DELETING', state_time = now() - interval '1 s'")

    assert await collected(tenant) == ({"unsettled_blob_count": 2, "refused_deletion_count": 1}, [locked])
    assert await collected(tenant) == ({"unsettled_blob_count": 1, "refused_deletion_count": 1}, [locked])

    again = await tenant.stage(text("a", "locked"))  # Elsewhere, so that nobody waits for the lock's end.
    assert await tenant.read(again.set_id, "a") == b"locked"
    gateway.refused_keys.clear()
    assert await collected(tenant) == ({"orphan_object_count": 1}, [])


async def test_an_expired_upload_that_is_locked_does_not_hold_up_the_next(tenant: Tenant, gateway: Gateway) -> None:
    for seed in range(3):
        await send(tenant, begin(spec_of(content(PART + 1, seed))), chunks(content(PART, seed)))
    await upload(tenant, b"complete")
    first = min(await tenant.rows("uploads"), key=lambda row: str(row["upload_id"]))
    gateway.refused_keys[first["object_key"]] = "AccessDenied"
    await change(tenant, "update uploads set expire_time = now() - interval '1 second'")

    assert await collected(tenant) == ({"expired_upload_count": 4, "refused_deletion_count": 1}, [first["object_key"]])

    assert [row["upload_id"] for row in await tenant.rows("uploads")] == [first["upload_id"]]
    gateway.refused_keys.clear()
    assert await collected(tenant) == ({"expired_upload_count": 1}, [])
    assert await tenant.left() == (0, 0, 0)


async def test_an_S3_that_is_ill_ends_the_collection_as_before(tenant: Tenant, gateway: Gateway) -> None:
    tenant.put(LOCKED, b"x")
    gateway.refused_keys[LOCKED] = "SlowDown"

    with refused(Reason.DEPENDENCY_UNAVAILABLE, dependency="S3"):
        await tenant.collect()


async def test_refused_deletions_are_a_metric(tenant: Tenant, gateway: Gateway) -> None:
    tenant.put(LOCKED, b"x")
    gateway.refused_keys[LOCKED] = "AccessDenied"
    settings = tenant.service.settings
    async with start_process("attachment-blob", settings) as process, open_worker(process, settings) as worker:
        await worker.collecting.collect(tenant.tenant_id, dry_run=False)
        samples = _samples(process.metrics.port)

    assert samples['spawnmesh_garbage_items_total{spawnmesh_garbage_kind="refused_deletion"}'] == 1
