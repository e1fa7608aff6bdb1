"""PurgeTenant leaves nothing of the tenant, also if it was interrupted."""

import asyncio

import psycopg
import pytest
from spawnmesh_attachment_blob.app import open_dependencies
from spawnmesh_attachment_blob.clients.s3_calls import http_pool
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.sets import SetRequest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres import tenant_participant

from tests.support.attachment_blob.fakes import PausedPuts, participant_of, prepare, waits_for_a_lock
from tests.support.attachment_blob.fixtures import (
    TABLES,
    BlobService,
    Tenant,
    new_set_id,
    open_stager,
    refused,
)
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.uploads import PART, WHOLE, begin, chunks, content, send, spec_of, upload
from tests.support.waiting import eventually


async def nothing_is_left(tenant: Tenant) -> bool:
    rows = [await tenant.rows(table) for table in TABLES]
    return not any(rows) and not tenant.service.admin.bucket_exists(tenant.bucket)


async def filled(tenant: Tenant) -> None:
    """Create sets in each state, finished and open uploads, and an orphaned object."""
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

    purged = await tenant.purge()

    assert (purged.done, purged.removed["objects"]) == (True, 5)
    assert purged.row_count > 10
    assert await nothing_is_left(tenant)
    assert await other.read(kept.set_id, "b") == b"shared"
    again = await tenant.purge()
    assert (again.done, again.removed) == (True, {})


async def test_PurgeTenant__resumed_after_an_interruption(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tenant)
    monkeypatch.setattr(tenant_participant, "PAGES_PER_CALL", 2)
    first = await tenant.purge()
    assert not first.done
    with refused(Reason.UNKNOWN_TENANT):
        await tenant.stage(text("a", "x"))
    with refused(Reason.UNKNOWN_TENANT):
        await upload(tenant, b"x")
    with refused(Reason.CONFLICT):
        await tenant.prepare(10)
    calls = 1
    while not (await tenant.purge()).done:
        calls += 1

    assert calls > 1
    assert await nothing_is_left(tenant)


async def test_PurgeTenant__of_more_rows_than_the_statistics_show(
    tenant: Tenant, databases: dict[str, ServiceDsn], postgres: Postgres
) -> None:
    """Each page is found and deleted once, whatever the planner's statistics say."""
    await tenant.stage(text("a", "x"))
    async with await psycopg.AsyncConnection.connect(
        databases["attachment_blob"].owner, autocommit=True
    ) as owner:
        await owner.execute("analyze sets, set_files")
        await owner.execute("alter table sets set (autovacuum_enabled = false)")
        await owner.execute("alter table set_files set (autovacuum_enabled = false)")
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("set search_path to attachment_blob")
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant.tenant_id,))
        # Skip the checks of foreign keys, which would read all rows of the tenant for each row.
        await connection.execute("set session_replication_role to replica")
        await connection.execute(
            """insert into sets (tenant_id, set_id, session_id, state)
               select current_setting('spawnmesh.tenant'), 'att_' || n, 'ses_' || n, 'STAGED'
               from generate_series(1, 20000) n"""
        )
        await connection.execute(
            """insert into set_files
               select current_setting('spawnmesh.tenant'), 'att_' || n, 0, 'a', 1,
                   repeat('0', 64), 'text/plain'
               from generate_series(1, 20000) n"""
        )
    # A statement that read all rows for each of them would exceed the statement timeout.
    while not (await tenant.purge()).done:
        pass
    assert await nothing_is_left(tenant)


async def test_PurgeTenant__tenant_can_be_created_anew(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"))
    await tenant.purge()
    with refused(Reason.NOT_FOUND):
        await tenant.get(staged.set_id)

    assert await tenant.prepare(1) == 1

    again = await tenant.stage(text("a", "x"), set_id=staged.set_id)
    assert await tenant.read(again.set_id, "a") == b"x"


async def test_PurgeTenant__its_limits_do_not_apply_to_the_tenant_created_anew(tenant: Tenant) -> None:
    """Both tenants have the first version of their settings."""
    await tenant.stage(text("a", "x"), text("b", "y"))
    while not (await tenant.purge()).done:
        pass
    await tenant.prepare(1, max_file_count=1)

    with refused(Reason.ATTACHMENTS_FILE_COUNT_EXCEEDED, limit="1"):
        await tenant.stage(text("a", "x"), text("b", "y"))


async def test_PurgeTenant__while_sets_are_staged(tenant: Tenant) -> None:
    staging = [asyncio.ensure_future(tenant.stage(text("a", f"{n}"))) for n in range(12)]
    async with asyncio.timeout(60):
        while not (await tenant.purge()).done:
            pass
    await asyncio.gather(*staging, return_exceptions=True)

    assert (await tenant.purge()).done
    assert await nothing_is_left(tenant)


async def test_PurgeTenant__waits_for_an_upload_that_begins(tenant: Tenant, postgres: Postgres) -> None:
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("lock table uploads in share row exclusive mode")
        begun = asyncio.ensure_future(send(tenant, begin(spec_of(b"x"))))
        await eventually(lambda: waits_for_a_lock(postgres))
        purging = asyncio.ensure_future(tenant.purge())
        await eventually(lambda: waits_for_a_lock(postgres, 2))
        assert await tenant.rows("purged_tenants") == []
    await begun

    assert (await purging).done
    assert await nothing_is_left(tenant)


async def test_ReleaseSet__of_a_purged_tenant_leaves_no_row(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = await tenant.stage(text("a", "x"))
    monkeypatch.setattr(tenant_participant, "PAGES_PER_CALL", 1)
    assert not (await tenant.purge()).done
    monkeypatch.undo()
    assert await tenant.release(staged.set_id) == 0
    while not (await tenant.purge()).done:
        pass

    assert await tenant.release(staged.set_id) == await tenant.release(new_set_id()) == 0
    assert await nothing_is_left(tenant)


async def test_PrepareTenant__overtaken_by_a_purge_leaves_no_bucket(tenant: Tenant) -> None:
    await tenant.stage(text("a", "x"))
    async with open_dependencies(tenant.service.settings) as on:

        class Overtaken(TenantBuckets):
            def make_bucket(self, tenant_id: str) -> None:
                purge = participant_of(on).purge(tenant_id, 0)
                assert asyncio.run_coroutine_threadsafe(purge, loop).result(60).is_done
                super().make_bucket(tenant_id)

        loop = asyncio.get_running_loop()
        with http_pool(tenant.service.settings) as http:
            overtaken = participant_of(on, buckets=Overtaken(tenant.service.settings, http))
            with pytest.raises(MeshError) as refused_error:
                await prepare(overtaken, tenant.tenant_id, 2)

        assert refused_error.value.reason is Reason.CONFLICT
    assert await nothing_is_left(tenant)


async def test_PurgeTenant__waits_for_a_set_whose_objects_are_being_put(
    tenant: Tenant, postgres: Postgres
) -> None:
    async with open_stager(tenant.service, PausedPuts) as (stager, objects):
        request = SetRequest(new_set_id(), new_id(IdKind.SESSION), [InlineItem("a", "x", Encoding.UTF8)])
        staged = asyncio.ensure_future(stager.stage_set(tenant.tenant_id, request))
        await objects.were_put.wait()
        purging = asyncio.ensure_future(tenant.purge())
        await eventually(lambda: waits_for_a_lock(postgres))
        assert not purging.done()
        objects.go_on.set()
        await staged

        assert (await purging).done

    assert await nothing_is_left(tenant)
