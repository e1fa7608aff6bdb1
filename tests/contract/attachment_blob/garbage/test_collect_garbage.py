"""CollectGarbage repairs each interruption between the bucket and the rows."""

import asyncio
import contextlib
import hashlib
import tracemalloc
from collections.abc import Awaitable, Collection
from datetime import timedelta
from typing import Any

import pytest
import structlog
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh_attachment_blob.app import open_dependencies
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.domain.sets import SetRequest
from spawnmesh_attachment_blob.operations.releaser import Releaser
from spawnmesh_core.clock import utc_now
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres

from tests.support.attachment_blob.fakes import (
    FILES,
    Killed,
    KilledAfterPut,
    PausedPuts,
    collector_of,
    waits_for_a_lock,
)
from tests.support.attachment_blob.fixtures import (
    BlobService,
    Tenant,
    key_of_hash,
    new_set_id,
    open_stager,
    refused,
    repaired,
)
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.uploads import (
    PART,
    WHOLE,
    begin,
    chunks,
    content,
    ref,
    send,
    spec_of,
    stage_uploads,
    upload,
)
from tests.support.waiting import eventually


@pytest.fixture
async def tenant(eager: BlobService) -> Tenant:
    """A tenant of a service without a grace period."""
    tenant = eager.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


async def age(tenant: Tenant, statement: str) -> None:
    """Change times without the service."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute(statement)


async def test_nothing_to_do(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"), text("b", "y"))
    await stage_uploads(tenant, ref((await upload(tenant, b"z")).upload_id))
    await send(tenant, begin(spec_of(content(PART + 1))), chunks(content(PART)))

    assert await tenant.collect() == {}

    assert await tenant.read(staged.set_id, "a") == b"x"


async def test_staging_killed_between_objects_and_rows(tenant: Tenant) -> None:
    async with open_stager(tenant.service, KilledAfterPut) as (stager, _):
        with contextlib.suppress(Killed):
            await stager.stage_set(tenant.tenant_id, SetRequest(new_set_id(), new_id(IdKind.SESSION), FILES))
    assert await tenant.left() == (0, 0, 2)

    await repaired(tenant, {"orphan_object_count": 2})

    assert await tenant.left() == (0, 0, 0)
    assert await tenant.rows("sets") == []


async def test_a_set_is_staged_while_the_collector_sees_its_objects_as_orphans(
    tenant: Tenant, postgres: Postgres
) -> None:
    set_id = new_set_id()
    async with (
        open_stager(tenant.service, PausedPuts) as (stager, objects),
        open_dependencies(tenant.service.settings) as on,
    ):
        request = SetRequest(set_id, new_id(IdKind.SESSION), FILES)
        staged = asyncio.ensure_future(stager.stage_set(tenant.tenant_id, request))
        await objects.were_put.wait()
        collecting = asyncio.ensure_future(on.releaser.delete_orphans(tenant.tenant_id, tenant.object_keys()))
        await eventually(lambda: waits_for_a_lock(postgres))
        objects.go_on.set()
        await staged

        assert await collecting == 0

    assert await tenant.read(set_id, "a") == b"A"
    assert await tenant.collect() == {}


class KilledBeforeDelete(ObjectStore):
    async def delete_all(self, tenant_id: str, keys: Collection[str]) -> None:
        raise Killed


class KilledAfterDelete(ObjectStore):
    async def delete_all(self, tenant_id: str, keys: Collection[str]) -> None:
        await super().delete_all(tenant_id, keys)
        raise Killed


@pytest.mark.parametrize("kind", [KilledBeforeDelete, KilledAfterDelete])
async def test_release_killed_around_the_deletion_of_the_objects(
    tenant: Tenant, kind: type[ObjectStore]
) -> None:
    staged = await tenant.stage(text("a", "x"), text("b", "y"))
    async with open_stager(tenant.service, kind) as (stager, _):
        releaser: Releaser = stager._releaser
        with contextlib.suppress(Killed):
            await releaser.release_set(tenant.tenant_id, staged.set_id)
    assert (await tenant.left())[:2] == (2, 2)

    await repaired(tenant, {"unremoved_set_count": 1})

    assert await tenant.left() == (0, 0, 0)


async def test_blob_left_deleting_without_a_set(tenant: Tenant) -> None:
    await tenant.stage(text("a", "x"))
    await age(tenant, "delete from sets; update blobs set state = 'DELETING'")

    await repaired(tenant, {"unsettled_blob_count": 1})

    assert await tenant.left() == (0, 0, 0)


async def test_orphaned_objects_are_deleted(tenant: Tenant) -> None:
    kept = await tenant.stage(text("kept", "kept"))
    known = hashlib.sha256(b"kept").hexdigest()
    key = tenant.key_of(known)
    lost = hashlib.sha256(b"lost").hexdigest()
    for orphan in (key_of_hash(lost), key_of_hash(known), key_of_hash(lost, "4567")):
        tenant.put(orphan, b"x")
    tenant.put("README", b"not ours")
    tenant.put("sha256/zz/not-a-hash", b"not ours")

    await repaired(tenant, {"orphan_object_count": 3})

    assert sorted(tenant.object_keys()) == sorted(["README", "sha256/zz/not-a-hash", key])
    assert await tenant.read(kept.set_id, "kept") == b"kept"
    assert len(await tenant.rows("blobs")) == 1


async def test_rows_with_missing_or_damaged_objects_are_reported_and_kept(tenant: Tenant) -> None:
    lost = await tenant.stage(text("a", "lost"))
    cut = await tenant.stage(text("a", "cut short"))
    tenant.lose(lost.files[0].sha256)
    tenant.overwrite(cut.files[0].sha256, b"cut")

    for _ in range(2):
        with structlog.testing.capture_logs() as events:
            assert await tenant.collect() == {"missing_object_count": 1, "damaged_object_count": 1}
        told = {event["event"]: event["set_ids"] for event in events if "set_ids" in event}
        assert told == {"object_missing": [lost.set_id], "object_size_differs": [cut.set_id]}
    assert len(await tenant.rows("blobs")) == 2


async def test_an_expired_upload_is_removed_with_its_parts(tenant: Tenant) -> None:
    spec = spec_of(content(PART + 1))
    await send(tenant, begin(spec), chunks(content(PART)))
    assert len(tenant.unfinished_multiparts()) == 1
    await age(tenant, "update uploads set expire_time = now() - interval '1 second'")

    await repaired(tenant, {"expired_upload_count": 1})

    assert tenant.unfinished_multiparts() == []
    assert await tenant.rows("uploads") == await tenant.rows("upload_parts") == []


async def test_an_expired_upload_leaves_the_bytes_to_sets_that_have_them(tenant: Tenant) -> None:
    used, unused = await upload(tenant, b"used"), await upload(tenant, b"unused")
    staged = await stage_uploads(tenant, ref(used.upload_id, "a"))
    await age(tenant, "update uploads set expire_time = now() - interval '1 second'")

    await repaired(tenant, {"expired_upload_count": 2})

    assert await tenant.left() == (1, 1, 1)
    assert await tenant.read(staged.set_id, "a") == b"used"
    with refused(Reason.NOT_FOUND):
        await stage_uploads(tenant, ref(unused.upload_id))
    assert await tenant.release(staged.set_id) == 1
    assert await tenant.left() == (0, 0, 0)


async def test_an_interrupted_removal_of_an_upload_is_resumed(tenant: Tenant) -> None:
    spec = spec_of(content(PART + 1))
    await send(tenant, begin(spec), chunks(content(PART)))
    await age(tenant, "update uploads set state = 'ABORTING'")
    with refused(Reason.NOT_FOUND):
        await send(tenant, begin(spec))

    await repaired(tenant, {"expired_upload_count": 1})

    assert tenant.unfinished_multiparts() == []


async def test_an_upload_killed_between_object_and_row_keeps_the_object_until_it_expires(
    tenant: Tenant,
) -> None:
    data = content(PART + 1)
    await send(tenant, begin(spec_of(data)), chunks(data))
    (row,) = await tenant.rows("uploads")
    tenant.service.admin._abort_multipart_upload(tenant.bucket, row["object_key"], row["multipart_id"])
    tenant.put(row["object_key"], data)

    assert await tenant.collect() == {}
    await age(tenant, "update uploads set expire_time = now() - interval '1 second'")
    await repaired(tenant, {"expired_upload_count": 1})

    assert tenant.object_keys() == []


async def test_an_orphaned_multipart_upload_is_aborted(tenant: Tenant) -> None:
    tenant.service.admin._create_multipart_upload(tenant.bucket, "sha256/aa/x", {})

    await repaired(tenant, {"orphan_multipart_count": 1})

    assert tenant.unfinished_multiparts() == []


async def test_leftovers_within_the_grace_period_are_kept(blobs: BlobService) -> None:
    tenant = blobs.tenant()
    await tenant.prepare()
    tenant.put(key_of_hash("0" * 64), b"x")
    tenant.service.admin._create_multipart_upload(tenant.bucket, "sha256/aa/x", {})
    await tenant.stage(text("a", "x"))
    async with open_stager(tenant.service, KilledAfterPut) as (stager, _):
        with contextlib.suppress(Killed):
            await stager.stage_set(tenant.tenant_id, SetRequest(new_set_id(), new_id(IdKind.SESSION), FILES))
    await age(tenant, "update blobs set state = 'DELETING' where size_bytes = 1")

    assert await tenant.collect() == {}


async def test_small_pages_find_the_same_garbage(tenant: Tenant) -> None:
    staged = [await tenant.stage(text("a", f"content {n}")) for n in range(7)]
    for one in staged[:3]:
        tenant.lose(one.files[0].sha256)
    for n in range(5):
        tenant.put(key_of_hash(hashlib.sha256(f"orphan {n}".encode()).hexdigest()), b"x")

    async with open_dependencies(tenant.service.settings) as on:
        collecting = collector_of(on, page_rows=2, clock=in_a_minute)
        counts = await collecting.collect(tenant.tenant_id, dry_run=False)

    assert (counts.seen_object_count, counts.orphan_object_count, counts.missing_object_count) == (9, 5, 3)
    assert len(tenant.object_keys()) == 4


def in_a_minute() -> Any:
    return utc_now() + timedelta(minutes=1)


async def test_rows_without_objects_are_compared_in_pages(tenant: Tenant) -> None:
    """After a loss of all objects the collector holds pages in memory, not all lost rows."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute(
            """insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
            select current_setting('spawnmesh.tenant'), sha, 1, 'DELETING',
                'sha256/' || left(sha, 2) || '/' || sha
            from (select encode(sha256(n::text::bytea), 'hex') as sha from generate_series(1, 20000) n) s"""
        )
    tracemalloc.start()
    try:
        async with open_dependencies(tenant.service.settings) as on:
            before, _ = tracemalloc.get_traced_memory()
            await on.collector.collect(tenant.tenant_id, dry_run=True)
            peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()

    assert peak < 2 * 1024 * 1024


async def test_an_orphan_whose_bytes_are_stored_meanwhile_is_kept(tenant: Tenant) -> None:
    """The collector has found an object without a row. Then a call stores the same bytes."""
    staged = await tenant.stage(text("a", "same"))
    (key,) = tenant.object_keys()
    orphan = key_of_hash(hashlib.sha256(b"same").hexdigest())
    tenant.put(orphan, b"same")

    async with open_dependencies(tenant.service.settings) as on:
        assert await on.releaser.delete_orphans(tenant.tenant_id, [key, orphan]) == 1

    assert await tenant.read(staged.set_id, "a") == b"same"


async def test_concurrent_staging_and_collection_lose_nothing(tenant: Tenant) -> None:
    async def come_and_go(n: int) -> None:
        staged = await tenant.stage(text("a", f"{n % 3}"), text("b", f"own {n}"))
        assert await tenant.read(staged.set_id, "a") == f"{n % 3}".encode()
        if n % 2:
            await tenant.release(staged.set_id)

    async with open_dependencies(tenant.service.settings) as on:
        for _ in range(4):
            keys = tenant.object_keys()
            work: list[Awaitable[Any]] = [come_and_go(n) for n in range(8)]
            work += [on.releaser.delete_orphans(tenant.tenant_id, keys) for _ in range(8)]
            await asyncio.gather(*work)

    for row in await tenant.rows("sets"):
        if row["state"] == "STAGED":
            assert await tenant.read(row["set_id"], "a") in (b"0", b"1", b"2")
    assert len(tenant.object_keys()) == len(await tenant.rows("blobs"))


async def test_attached_sets_are_released_after_the_tenants_retention(tenant: Tenant) -> None:
    attached, staged = await tenant.stage(text("a", "x")), await tenant.stage(text("a", "y"))
    await tenant.attach(attached.set_id)
    await age(tenant, "update sets set state_time = now() - interval '61 seconds'")
    assert await tenant.collect() == {}
    await tenant.prepare(2, **WHOLE, retention=Duration(seconds=60))

    await repaired(tenant, {"expired_set_count": 1})

    assert (await tenant.get(attached.set_id)).state == attachment_pb2.SET_STATE_RELEASED
    assert await tenant.read(staged.set_id, "a") == b"y"
    assert await tenant.left() == (1, 1, 1)


async def test_CollectGarbage__unknown_tenant_and_wrong_callers(blobs: BlobService) -> None:
    tenant = blobs.tenant()
    with refused(Reason.NOT_FOUND):
        await tenant.collect()
    request = pb.CollectGarbageRequest(tenant_id=tenant.tenant_id)
    for token in (tenant.client_token(), tenant.service_token(), tenant.run_token(new_id(IdKind.SESSION))):
        with refused(Reason.CALLER_NOT_ALLOWED):
            await tenant.call("CollectGarbage", request, token=token)
