"""The storage quota of a tenant: what counts, what is refused, and what makes room."""

import asyncio
import random

import pytest
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh.tenancy.v1 import tenant_status_pb2
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.sets import SetRequest
from spawnmesh_attachment_blob.domain.storage import StorageUsage
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_runtime.impersonation import use_token

from tests.support import tenancy
from tests.support.attachment_blob.fakes import PausedPuts
from tests.support.attachment_blob.fixtures import BlobService, Tenant, new_set_id, open_stager, refused
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.payloads import put, release
from tests.support.attachment_blob.uploads import (
    WHOLE,
    begin,
    chunks,
    content,
    finish,
    ref,
    send,
    spec_of,
    stage_uploads,
    upload,
)

OPEN, COMPLETE = upload_pb2.UPLOAD_STATE_OPEN, upload_pb2.UPLOAD_STATE_COMPLETE
FULL = Reason.ATTACHMENTS_STORED_BYTES_EXCEEDED
LIMIT = 100


async def usage_of(tenant: Tenant) -> tuple[int, int]:
    """Return the stored and the uploading bytes of the tenant's status."""
    with use_token(tenant.service_token()):
        storage: tenant_status_pb2.StorageUsage = (await tenancy.status_of(tenant.service.peer)).storage
    return storage.stored_bytes, storage.uploading_bytes


async def limit(tenant: Tenant, max_stored_bytes: int, version: int = 2) -> None:
    await tenant.prepare(version, max_stored_bytes=max_stored_bytes, **WHOLE)


async def test_StageSet__bytes_that_do_not_fit_are_refused_until_others_are_released(tenant: Tenant) -> None:
    await limit(tenant, LIMIT)
    kept = await tenant.stage(text("a", "a" * 60))
    await tenant.attach(kept.set_id)

    facts = {"limit_bytes": "100", "stored_bytes": "60", "uploading_bytes": "0", "size_bytes": "41"}
    with refused(FULL, **facts) as errors:
        await tenant.stage(text("b", "b" * 41))

    assert errors[0].status is Status.RESOURCE_EXHAUSTED
    assert "max_stored_bytes" in errors[0].message
    assert len(await tenant.rows("sets")) == len(tenant.object_keys()) == 1
    await tenant.stage(text("b", "b" * 40))
    assert await usage_of(tenant) == (100, 0)
    await tenant.release(kept.set_id)
    assert await usage_of(tenant) == (40, 0)
    await tenant.stage(text("c", "c" * 60))


async def test_StageSet__stored_bytes_need_no_room(tenant: Tenant) -> None:
    await limit(tenant, LIMIT)
    first = await tenant.stage(text("a", "a" * 100))
    again = await tenant.stage(text("b", "a" * 100), text("c", "a" * 100))
    assert await usage_of(tenant) == (100, 0)

    await limit(tenant, 10, version=3)

    await tenant.stage(text("d", "a" * 100))
    with refused(FULL, size_bytes="101"):
        await tenant.stage(text("a", "a" * 100), text("e", "e"))
    await tenant.release(first.set_id)
    assert await usage_of(tenant) == (100, 0)
    await tenant.release(again.set_id)
    assert await usage_of(tenant) == (100, 0)


async def test_StageSet__a_repeat_of_a_set_needs_no_room(tenant: Tenant) -> None:
    await limit(tenant, LIMIT)
    set_id = new_set_id()
    staged = await tenant.stage(text("a", "a" * 100), set_id=set_id)
    again = await tenant.stage(text("a", "a" * 100), set_id=set_id, session_id=staged.session_id)
    assert again == staged
    await tenant.release(set_id)
    await tenant.stage(text("b", "b" * 100))
    with refused(Reason.ATTACHMENT_SET_STATE):
        await tenant.stage(text("a", "a" * 100), set_id=set_id, session_id=staged.session_id)


async def test_an_upload_counts_from_its_beginning_until_it_is_removed(eager: BlobService) -> None:
    tenant = eager.tenant()
    await tenant.prepare(**WHOLE, max_stored_bytes=LIMIT)
    spec = spec_of(content(70))
    assert (await send(tenant, begin(spec))).state == OPEN
    assert (await send(tenant, begin(spec))).state == OPEN
    assert await usage_of(tenant) == (0, 70)

    with refused(FULL, uploading_bytes="70", size_bytes="31"):
        await send(tenant, begin(spec_of(content(31, 1))))
    with refused(FULL, uploading_bytes="70"):
        await tenant.stage(text("a", "a" * 31))
    assert len(await tenant.rows("uploads")) == 1

    assert (await send(tenant, begin(spec), chunks(content(70)), finish())).state == COMPLETE
    assert await usage_of(tenant) == (70, 0)
    with refused(FULL, stored_bytes="70"):
        await tenant.stage(text("a", "a" * 31))

    await _expire_uploads(tenant)
    assert await tenant.collect() == {"expired_upload_count": 1}
    assert await usage_of(tenant) == (0, 0)
    await tenant.stage(text("a", "a" * 100))


async def test_an_open_upload_that_expires_makes_room(eager: BlobService) -> None:
    tenant = eager.tenant()
    await tenant.prepare(**WHOLE, max_stored_bytes=LIMIT)
    await send(tenant, begin(spec_of(content(70))))
    await _expire_uploads(tenant)
    assert await tenant.collect() == {"expired_upload_count": 1}
    assert await usage_of(tenant) == (0, 0)


async def test_an_upload_with_other_bytes_makes_room(tenant: Tenant) -> None:
    await limit(tenant, LIMIT)
    spec = spec_of(content(70), sha256="0" * 64)
    with refused(Reason.UPLOAD_HASH_DIFFERS):
        await send(tenant, begin(spec), chunks(content(70)), finish())
    assert await usage_of(tenant) == (0, 0)


async def test_uploads_of_the_same_bytes_are_stored_once(tenant: Tenant) -> None:
    await limit(tenant, LIMIT)
    data = content(50)
    first, second = spec_of(data), spec_of(data)
    for spec in (first, second):
        assert (await send(tenant, begin(spec))).state == OPEN
    assert await usage_of(tenant) == (0, 100)

    for spec in (first, second):  # The second finds the bytes stored.
        assert (await send(tenant, begin(spec), chunks(data), finish())).state == COMPLETE

    assert await usage_of(tenant) == (50, 0)
    assert (await upload(tenant, data)).state == COMPLETE
    staged = await stage_uploads(tenant, ref(first.upload_id))
    assert await usage_of(tenant) == (50, 0)
    await tenant.release(staged.set_id)
    assert await usage_of(tenant) == (50, 0)


async def test_concurrent_uploads_never_exceed_the_quota(tenant: Tenant) -> None:
    await limit(tenant, LIMIT)
    beginning = [send(tenant, begin(spec_of(content(30, seed)))) for seed in range(8)]
    outcomes = await asyncio.gather(*beginning, return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, MeshError)]
    assert [error.reason for error in failed] == [FULL] * 5
    assert await usage_of(tenant) == (0, 90)


async def test_StageSet__concurrent_sets_fill_the_quota_and_never_exceed_it(tenant: Tenant) -> None:
    """Several find room when they begin, since none has ended."""
    await limit(tenant, LIMIT)
    for round_number in range(5):
        staging = [tenant.stage(text("a", f"{round_number}{number:059}")) for number in range(8)]
        outcomes = await asyncio.gather(*staging, return_exceptions=True)
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        (kept,) = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        assert [getattr(error, "reason", error) for error in failed] == [FULL] * 7
        assert await usage_of(tenant) == (60, 0)
        assert len(await tenant.rows("blobs")) == len(tenant.object_keys()) == 1
        rest = await tenant.stage(text("b", f"{round_number:040}"))
        assert await usage_of(tenant) == (100, 0)
        for one in (kept, rest):
            await tenant.release(one.set_id)
        assert await usage_of(tenant) == (0, 0)


async def test_StageSet__a_set_is_refused_if_others_used_up_the_quota_while_it_was_put(
    tenant: Tenant,
) -> None:
    await limit(tenant, LIMIT)
    items = [InlineItem("a", "a" * 60, Encoding.UTF8)]
    request = SetRequest(new_set_id(), new_id(IdKind.SESSION), items)
    async with open_stager(tenant.service, PausedPuts) as (stager, objects):
        waiting = asyncio.ensure_future(stager.stage_set(tenant.tenant_id, request))
        await objects.were_put.wait()
        kept = await tenant.stage(text("b", "b" * 60))
        objects.go_on.set()
        with pytest.raises(MeshError) as refusal:
            await waiting
        assert (refusal.value.reason, refusal.value.facts["stored_bytes"]) == (FULL, "60")
        assert [row["set_id"] for row in await tenant.rows("sets")] == [kept.set_id]
        assert len(tenant.object_keys()) == 1
        await tenant.release(kept.set_id)
        assert (await stager.stage_set(tenant.tenant_id, request)).set_id == request.set_id
    assert await usage_of(tenant) == (60, 0)


async def test_concurrent_sets_are_all_counted(tenant: Tenant) -> None:
    staging = [tenant.stage(text("a", str(number) * 10), text("b", "same")) for number in range(8)]
    staged = await asyncio.gather(*staging)
    assert await usage_of(tenant) == (84, 0)
    await asyncio.gather(*(tenant.release(one.set_id) for one in staged))
    assert await usage_of(tenant) == (0, 0)


async def test_PutBlob__counts_and_is_not_refused(tenant: Tenant) -> None:
    await limit(tenant, LIMIT)
    blob_id, _ = await put(tenant, content(150))
    assert await usage_of(tenant) == (150, 0)
    with refused(FULL, stored_bytes="150"):
        await tenant.stage(text("a", "a"))
    await release(tenant, blob_id)
    await tenant.stage(text("a", "a"))


async def test_lost_bytes_do_not_count_until_they_are_found_or_sent_again(eager: BlobService) -> None:
    tenant = eager.tenant()
    await tenant.prepare()
    staged = await tenant.stage(text("a", "precious"))
    (row,) = await tenant.rows("blobs")
    tenant.lose(staged.files[0].sha256)
    await tenant.collect()
    await tenant.collect()
    assert await usage_of(tenant) == (0, 0)
    tenant.put(row["object_key"], b"precious")
    await tenant.collect()
    assert await usage_of(tenant) == (8, 0)
    tenant.lose(staged.files[0].sha256)
    await tenant.collect()
    await tenant.stage(text("b", "precious"))
    assert await usage_of(tenant) == (8, 0)


async def test_GetTenantStatus__the_storage_in_use_and_its_limit(blobs: BlobService) -> None:
    tenant = blobs.tenant()
    with use_token(tenant.service_token()):
        assert not (await tenancy.status_of(blobs.peer)).HasField("storage")
        await tenant.prepare()
        assert (await tenancy.status_of(blobs.peer)).storage == tenant_status_pb2.StorageUsage(
            max_stored_bytes=100 * 1024**3
        )
        await tenancy.purge_fully(blobs.peer)
        assert not (await tenancy.status_of(blobs.peer)).HasField("storage")


async def test_the_statements_and_the_domain_agree_on_what_fits(tenant: Tenant) -> None:
    """Any counters, also above the quota, and sizes around what is free."""
    await limit(tenant, LIMIT)
    any_state = random.Random(1)
    for number in range(20):
        counters = {name: any_state.choice((0, 1, 30, 70)) for name in ("stored_bytes", "uploading_bytes")}
        usage = StorageUsage(**counters, max_stored_bytes=any_state.choice((1, 70, 100, 101)))
        sizes = {1, usage.free_bytes, usage.free_bytes + 1} - {0}
        for size in sizes:
            for call in (
                lambda data: send(tenant, begin(spec_of(data))),
                lambda data: tenant.stage(text("a", data.hex()[: len(data)])),
            ):
                assert await _set_counters(tenant, usage) == usage.free_bytes
                [outcome] = await asyncio.gather(call(content(size, number)), return_exceptions=True)
                reason = getattr(outcome, "reason", None)
                assert reason is (None if usage.has_room(size) else FULL), (usage, size, outcome)
                await _forget_files(tenant)
    await _set_counters(tenant, StorageUsage(0, 0, LIMIT))


async def _set_counters(tenant: Tenant, usage: StorageUsage) -> int:
    """Let the tenant use so much, and return how much is free."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        updated = await connection.execute(
            "update attachment_tenants set (stored_bytes, uploading_bytes, max_stored_bytes) = (%s, %s, %s)"
            " returning free_bytes",
            (usage.stored_bytes, usage.uploading_bytes, usage.max_stored_bytes),
        )
        row = await updated.fetchone()
    assert row is not None
    return int(row["free_bytes"])


async def _forget_files(tenant: Tenant) -> None:
    """Delete the rows of what was stored, so that no later call finds its bytes stored."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        for table in ("uploads", "set_files", "sets", "blobs"):
            await connection.execute(f"delete from {table}")


async def _expire_uploads(tenant: Tenant) -> None:
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("update uploads set expire_time = now() - interval '1 s'")
