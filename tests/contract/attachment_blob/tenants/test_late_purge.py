"""A late PurgeTenant leaves a tenant that was created anew, and its bucket."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
from spawnmesh_attachment_blob.app import open_dependencies
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import http_pool
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.database import Connection, Database

from tests.support.attachment_blob.fakes import participant_of, prepare, waits_for_a_lock
from tests.support.attachment_blob.fixtures import TABLES, Tenant
from tests.support.attachment_blob.inline import text
from tests.support.waiting import eventually


async def purge(tenant: Tenant, version: int) -> tuple[bool, int, int]:
    purged = await tenant.purge(version)
    return purged.done, purged.removed.get("objects", 0), purged.row_count


async def rows_of(tenant: Tenant) -> dict[str, int]:
    return {table: len(await tenant.rows(table)) for table in TABLES}


async def test_PurgeTenant__of_an_earlier_tenant_leaves_the_one_created_anew(tenant: Tenant) -> None:
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


class HeldUp:
    """Holds the n-th transaction until the test lets it begin."""

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
async def test_PurgeTenant__stops_when_the_tenant_is_created_anew(tenant: Tenant, at: int) -> None:
    """Another call finishes the purge. This one then resumes with a page."""
    await tenant.prepare(4)
    await tenant.stage(text("a", "x"))
    async with open_dependencies(tenant.service.settings) as on:
        held: Any = HeldUp(on.database, at)
        late = participant_of(on, database=held)
        working = asyncio.create_task(late.purge(tenant.tenant_id, 4))
        await asyncio.wait_for(held.reached.wait(), 60)
        while not (await purge(tenant, 4))[0]:
            pass
        await tenant.prepare(5)
        staged = await tenant.stage(text("a", "anew"))
        kept = await rows_of(tenant)
        held.go_on.set()
        assert (await working).is_done
    assert await rows_of(tenant) == kept
    assert await tenant.read(staged.set_id, "a") == b"anew"


class SlowDeletions(ObjectStore):
    """Deletes when the test allows it."""

    def __init__(self, on: Dependencies) -> None:
        super().__init__(on.buckets, on.calls)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def delete_all(self, tenant_id: str, keys: Collection[str]) -> None:
        self.reached.set()
        await self.go_on.wait()
        await super().delete_all(tenant_id, keys)


async def test_PrepareTenant__waits_for_the_page_of_a_late_purge(tenant: Tenant, postgres: Postgres) -> None:
    await tenant.prepare(3)
    await tenant.stage(text("a", "x"))
    async with open_dependencies(tenant.service.settings) as on:
        slow = SlowDeletions(on)
        late = participant_of(on, objects=slow)
        working = asyncio.create_task(late.purge(tenant.tenant_id, 3))
        await asyncio.wait_for(slow.reached.wait(), 60)
        preparing = asyncio.create_task(tenant.prepare(4))
        await eventually(lambda: waits_for_a_lock(postgres))
        assert not preparing.done()
        slow.go_on.set()
        assert await preparing == 4
        assert (await working).is_done
    staged = await tenant.stage(text("a", "anew"))
    assert await tenant.read(staged.set_id, "a") == b"anew"


async def test_PrepareTenant__creates_the_bucket_again_after_a_late_purge(tenant: Tenant) -> None:
    await tenant.prepare(3)
    assert (await purge(tenant, 3))[0]
    async with open_dependencies(tenant.service.settings) as on:

        class Overtaken(TenantBuckets):
            def make_bucket(self, tenant_id: str) -> None:
                super().make_bucket(tenant_id)
                purge = participant_of(on).purge(tenant_id, 3)
                asyncio.run_coroutine_threadsafe(purge, loop).result(60)

        loop = asyncio.get_running_loop()
        with http_pool(tenant.service.settings) as http:
            overtaken = participant_of(on, buckets=Overtaken(tenant.service.settings, http))
            assert await prepare(overtaken, tenant.tenant_id, 4) == 4

    staged = await tenant.stage(text("a", "anew"))
    assert await tenant.read(staged.set_id, "a") == b"anew"
