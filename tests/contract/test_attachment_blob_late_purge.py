"""PurgeTenant that comes late leaves the tenant alone that was created anew, with its bucket."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_attachment_blob.app import Stores, open_stores
from spawnmesh_attachment_blob.domain import AttachmentLimits
from spawnmesh_attachment_blob.domain.limits import TenantPolicy
from spawnmesh_attachment_blob.objects import ObjectStore
from spawnmesh_attachment_blob.purging import Purged, Purging
from spawnmesh_attachment_blob.s3_calls import http_pool
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.tenants import Tenants
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.database import Connection, Database

from tests.contract.attachment_blob_fixtures import TABLES, Tenant, blobs, refused, tenant, text
from tests.contract.attachment_blob_parts import eventually, waits_for_a_lock

__all__ = ["blobs", "tenant"]


async def purge(tenant: Tenant, version: int) -> tuple[bool, int, int]:
    request = pb.PurgeTenantRequest(settings_version=version)
    answer = await tenant.call("PurgeTenant", request, timeout_seconds=60)
    return answer.done, answer.deleted_object_count, answer.deleted_row_count


def purging(on: Stores, max_pages: int = 20) -> Purging:
    return Purging(on.database, on.objects, on.multiparts, on.buckets, on.calls, max_pages=max_pages)


async def rows_of(tenant: Tenant) -> dict[str, int]:
    return {table: len(await tenant.rows(table)) for table in TABLES}


async def test_PurgeTenant__of_the_tenant_before_leaves_the_one_that_was_created_anew(tenant: Tenant) -> None:
    await tenant.prepare(3)
    await tenant.stage(text("a", "x"))
    done, objects, _ = await purge(tenant, 3)
    assert (done, objects) == (True, 1)
    assert await tenant.prepare(4) == 4
    staged = await tenant.stage(text("a", "anew"))
    kept = await rows_of(tenant)

    for late in (1, 3):
        assert await purge(tenant, late) == (True, 0, 0)

    assert await rows_of(tenant) == kept
    assert await tenant.read(staged.set_id, "a") == b"anew"
    await tenant.stage(text("b", "more"))
    assert await purge(tenant, 4) == (True, 2, sum(kept.values()) + 3)


async def test_PurgeTenant__that_was_cut_off_gives_way_to_the_tenant_that_is_created_anew(tenant: Tenant) -> None:
    await tenant.prepare(3)
    async with open_stores(tenant.service.settings) as on:
        assert not (await purging(on, max_pages=0).purge(tenant.tenant_id, 3)).done
        for stale in (2, 3):
            with refused(Reason.CONFLICT):
                await tenant.prepare(stale)

        assert await tenant.prepare(4) == 4

        staged = await tenant.stage(text("a", "anew"))
        assert (await purging(on).purge(tenant.tenant_id, 3)) == Purged(True, 0, 0)
    assert await tenant.read(staged.set_id, "a") == b"anew"


class HeldUp:
    """A database whose n-th transaction begins when it may."""

    def __init__(self, database: Database, at: int) -> None:
        self.database = database
        self.at = at
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Connection]:
        self.at -= 1
        if self.at == 0:
            self.reached.set()
            await self.go_on.wait()
        async with self.database.transaction(tenant_id) as connection:
            yield connection


@pytest.mark.parametrize("at", [2, 3, 4, 5])
async def test_PurgeTenant__stops_where_the_tenant_is_created_anew_meanwhile(tenant: Tenant, at: int) -> None:
    """Another call ends the purge; this one goes on with a page of the bucket, or of the rows."""
    await tenant.prepare(4)
    await tenant.stage(text("a", "x"))
    async with open_stores(tenant.service.settings) as on:
        held: Any = HeldUp(on.database, at)
        late = Purging(held, on.objects, on.multiparts, on.buckets, on.calls)
        working = asyncio.create_task(late.purge(tenant.tenant_id, 4))
        await asyncio.wait_for(held.reached.wait(), 20)
        while not (await purge(tenant, 4))[0]:
            pass
        await tenant.prepare(5)
        staged = await tenant.stage(text("a", "anew"))
        kept = await rows_of(tenant)
        held.go_on.set()
        assert (await working).done
    assert await rows_of(tenant) == kept
    assert await tenant.read(staged.set_id, "a") == b"anew"


class SlowDeletions(ObjectStore):
    """Deletes when it may."""

    def __init__(self, on: Stores) -> None:
        super().__init__(on.buckets, on.calls)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def delete_all(self, tenant_id: str, keys: Collection[str]) -> None:
        self.reached.set()
        await self.go_on.wait()
        await super().delete_all(tenant_id, keys)


async def test_PrepareTenant__waits_for_the_page_that_a_late_purge_is_removing(
    tenant: Tenant, postgres: Postgres
) -> None:
    await tenant.prepare(3)
    await tenant.stage(text("a", "x"))
    async with open_stores(tenant.service.settings) as on:
        slow = SlowDeletions(on)
        late = Purging(on.database, slow, on.multiparts, on.buckets, on.calls)
        working = asyncio.create_task(late.purge(tenant.tenant_id, 3))
        await asyncio.wait_for(slow.reached.wait(), 20)
        preparing = asyncio.create_task(tenant.prepare(4))
        await eventually(lambda: waits_for_a_lock(postgres))
        assert not preparing.done()
        slow.go_on.set()
        assert await preparing == 4
        assert (await working).done
    staged = await tenant.stage(text("a", "anew"))
    assert await tenant.read(staged.set_id, "a") == b"anew"


async def test_PrepareTenant__has_a_bucket_whatever_a_late_purge_removes_meanwhile(tenant: Tenant) -> None:
    await tenant.prepare(3)
    assert (await purge(tenant, 3))[0]
    async with open_stores(tenant.service.settings) as on:

        class Overtaken(TenantBuckets):
            def make_bucket(self, tenant_id: str) -> None:
                super().make_bucket(tenant_id)
                asyncio.run_coroutine_threadsafe(purging(on).purge(tenant_id, 3), loop).result(20)

        loop = asyncio.get_running_loop()
        with http_pool(tenant.service.settings) as http:
            tenants = Tenants(on.database, Overtaken(tenant.service.settings, http), on.calls)
            assert await tenants.prepare(tenant.tenant_id, 4, TenantPolicy(AttachmentLimits())) == 4

    staged = await tenant.stage(text("a", "anew"))
    assert await tenant.read(staged.set_id, "a") == b"anew"
