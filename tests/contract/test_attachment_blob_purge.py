"""PurgeTenant: nothing is left, however often it is cut off, and nothing of anybody else is touched."""

import asyncio

import psycopg
import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_attachment_blob.app import open_stores
from spawnmesh_attachment_blob.domain import AttachmentLimits, Encoding, InlineItem
from spawnmesh_attachment_blob.domain.limits import TenantPolicy
from spawnmesh_attachment_blob.purging import Purging
from spawnmesh_attachment_blob.s3_calls import http_pool
from spawnmesh_attachment_blob.staging import SetRequest
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.tenants import Tenants
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.contract.attachment_blob_fixtures import (
    TABLES,
    BlobService,
    Tenant,
    blobs,
    new_set_id,
    open_staging,
    refused,
    tenant,
    text,
)
from tests.contract.attachment_blob_parts import PausedPuts, eventually, waits_for_a_lock
from tests.contract.attachment_blob_uploads import PART, WHOLE, begin, chunks, content, send, spec_of, upload

__all__ = ["blobs", "tenant"]


async def purge(tenant: Tenant) -> pb.PurgeTenantResponse:
    answer: pb.PurgeTenantResponse = await tenant.call("PurgeTenant", pb.PurgeTenantRequest(), timeout_seconds=60)
    return answer


async def nothing_is_left(tenant: Tenant) -> bool:
    rows = [await tenant.rows(table) for table in TABLES]
    return not any(rows) and not tenant.service.admin.bucket_exists(tenant.bucket)


async def filled(tenant: Tenant) -> None:
    """Sets in every state, uploads complete and not, an object that no row knows."""
    await tenant.prepare(9, **WHOLE)
    for n in range(3):
        staged = await tenant.stage(text("a", f"{n}"), text("b", "shared"))
        await tenant.attach(staged.set_id)
    await tenant.release(staged.set_id)
    await upload(tenant, b"uploaded")
    await send(tenant, begin(spec_of(content(PART + 1))), chunks(content(PART)))
    tenant.put("elsewhere", b"x")


async def test_PurgeTenant__removes_everything_of_one_tenant(tenant: Tenant, blobs: BlobService) -> None:
    await filled(tenant)
    other = blobs.tenant()
    await other.prepare()
    kept = await other.stage(text("b", "shared"))

    purged = await purge(tenant)

    assert (purged.done, purged.deleted_object_count) == (True, 5)
    assert purged.deleted_row_count > 10
    assert await nothing_is_left(tenant)
    assert await other.read(kept.set_id, "b") == b"shared"
    again = await purge(tenant)
    assert (again.done, again.deleted_object_count, again.deleted_row_count) == (True, 0, 0)


async def test_PurgeTenant__gone_on_with_after_it_was_cut_off(tenant: Tenant) -> None:
    await filled(tenant)
    async with open_stores(tenant.service.settings) as on:
        one_page = Purging(on.database, on.objects, on.multiparts, on.buckets, on.calls, max_pages=1)
        first = await one_page.purge(tenant.tenant_id)
        assert not first.done
        with refused(Reason.UNKNOWN_TENANT):
            await tenant.stage(text("a", "x"))
        with refused(Reason.UNKNOWN_TENANT):
            await upload(tenant, b"x")
        with refused(Reason.CONFLICT):
            await tenant.prepare(10)
        calls = 1
        while not (await one_page.purge(tenant.tenant_id)).done:
            calls += 1

    assert calls > 1
    assert await nothing_is_left(tenant)


async def test_PurgeTenant__of_more_rows_than_the_statistics_know(
    tenant: Tenant, databases: dict[str, ServiceDsn]
) -> None:
    """A page is found and deleted once, whatever the planner believes."""
    await tenant.stage(text("a", "x"))
    async with await psycopg.AsyncConnection.connect(databases["attachment_blob"].owner, autocommit=True) as owner:
        await owner.execute("analyze sets, set_files")
        await owner.execute("alter table sets set (autovacuum_enabled = false)")
        await owner.execute("alter table set_files set (autovacuum_enabled = false)")
    async with await psycopg.AsyncConnection.connect(databases["attachment_blob"].app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant.tenant_id,))
        await connection.execute(
            """insert into sets (tenant_id, set_id, session_id, state)
               select current_setting('spawnmesh.tenant'), 'att_' || n, 'ses_' || n, 'STAGED' from generate_series(1, 20000) n"""
        )
        await connection.execute(
            """insert into set_files
               select current_setting('spawnmesh.tenant'), 'att_' || n, 0, 'a', 1, repeat('0', 64), 'text/plain'
               from generate_series(1, 20000) n"""
        )
    began = monotonic_seconds()
    while not (await purge(tenant)).done:
        pass
    assert monotonic_seconds() - began < 30
    assert await nothing_is_left(tenant)


async def test_PurgeTenant__a_tenant_may_come_back(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"))
    await purge(tenant)
    with refused(Reason.NOT_FOUND):
        await tenant.get(staged.set_id)

    assert await tenant.prepare(1) == 1

    again = await tenant.stage(text("a", "x"), set_id=staged.set_id)
    assert await tenant.read(again.set_id, "a") == b"x"


async def test_PurgeTenant__its_limits_do_not_hold_for_the_tenant_that_comes_back(tenant: Tenant) -> None:
    """Both have the first version of their settings."""
    await tenant.stage(text("a", "x"), text("b", "y"))
    while not (await purge(tenant)).done:
        pass
    await tenant.prepare(1, max_file_count=1)

    with refused(Reason.ATTACHMENTS_FILE_COUNT_EXCEEDED, limit="1"):
        await tenant.stage(text("a", "x"), text("b", "y"))


async def test_PurgeTenant__while_sets_are_staged(tenant: Tenant) -> None:
    staging = [asyncio.ensure_future(tenant.stage(text("a", f"{n}"))) for n in range(12)]
    async with asyncio.timeout(60):
        while not (await purge(tenant)).done:
            pass
    await asyncio.gather(*staging, return_exceptions=True)

    assert (await purge(tenant)).done
    assert await nothing_is_left(tenant)


async def test_PurgeTenant__waits_for_an_upload_that_is_just_beginning(tenant: Tenant, postgres: Postgres) -> None:
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("lock table uploads in share row exclusive mode")
        begun = asyncio.ensure_future(send(tenant, begin(spec_of(b"x"))))
        await eventually(lambda: waits_for_a_lock(postgres))
        purging = asyncio.ensure_future(purge(tenant))
        await eventually(lambda: waits_for_a_lock(postgres, 2))
        assert [row["purging"] for row in await tenant.rows("attachment_tenants")] == [False]
    await begun

    assert (await purging).done
    assert await nothing_is_left(tenant)


async def test_ReleaseSet__of_a_tenant_that_is_gone_leaves_no_row(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"))
    async with open_stores(tenant.service.settings) as on:
        purging = Purging(on.database, on.objects, on.multiparts, on.buckets, on.calls, max_pages=1)
        assert not (await purging.purge(tenant.tenant_id)).done
    assert await tenant.release(staged.set_id) == 0
    while not (await purge(tenant)).done:
        pass

    assert await tenant.release(staged.set_id) == await tenant.release(new_set_id()) == 0
    assert await nothing_is_left(tenant)


async def test_PurgeTenant__is_not_done_before_it_looked_and_found_nothing(tenant: Tenant) -> None:
    await filled(tenant)

    class BucketComesBack(Purging):
        """What a call of PrepareTenant does that the purge overtook."""

        async def _nothing_is_left(self, tenant_id: str) -> bool:
            if not came_back:
                came_back.append(tenant.service.admin.make_bucket(tenant.bucket))
            return await super()._nothing_is_left(tenant_id)

    came_back: list[None] = []
    async with open_stores(tenant.service.settings) as on:
        purging = BucketComesBack(on.database, on.objects, on.multiparts, on.buckets, on.calls)
        assert not (await purging.purge(tenant.tenant_id)).done
        assert (await purging.purge(tenant.tenant_id)).done

    assert await nothing_is_left(tenant)


async def test_PrepareTenant__that_a_purge_overtakes_leaves_no_bucket(tenant: Tenant) -> None:
    await tenant.stage(text("a", "x"))
    async with open_stores(tenant.service.settings) as on:

        class Overtaken(TenantBuckets):
            def make_bucket(self, tenant_id: str) -> None:
                asyncio.run_coroutine_threadsafe(purging.purge(tenant_id), loop).result(20)
                super().make_bucket(tenant_id)

        loop = asyncio.get_running_loop()
        purging = Purging(on.database, on.objects, on.multiparts, on.buckets, on.calls, max_pages=2)
        with http_pool(tenant.service.settings) as http:
            tenants = Tenants(on.database, Overtaken(tenant.service.settings, http), on.calls)
            with pytest.raises(MeshError) as refused_error:
                await tenants.prepare(tenant.tenant_id, 2, TenantPolicy(AttachmentLimits()))

        assert refused_error.value.reason is Reason.CONFLICT
        assert not tenant.service.admin.bucket_exists(tenant.bucket)
        while not (await purging.purge(tenant.tenant_id)).done:
            pass
    assert await nothing_is_left(tenant)


async def test_PurgeTenant__for_session_alone(tenant: Tenant) -> None:
    with refused(Reason.CALLER_NOT_ALLOWED):
        await tenant.call("PurgeTenant", pb.PurgeTenantRequest(), token=tenant.client_token())


async def test_PurgeTenant__waits_for_a_set_whose_objects_are_being_put(tenant: Tenant, postgres: Postgres) -> None:
    async with open_staging(tenant.service, PausedPuts) as (staging, objects):
        request = SetRequest(new_set_id(), new_id(IdKind.SESSION), [InlineItem("a", "x", Encoding.UTF8)])
        staged = asyncio.ensure_future(staging.stage(tenant.tenant_id, request))
        await objects.were_put.wait()
        purging = asyncio.ensure_future(purge(tenant))
        await eventually(lambda: waits_for_a_lock(postgres))
        assert not purging.done()
        objects.go_on.set()
        await staged

        assert (await purging).done

    assert await nothing_is_left(tenant)
