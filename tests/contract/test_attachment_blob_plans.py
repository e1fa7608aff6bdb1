"""What statements read of a tenant that has many rows and that the planner knows nothing of, as a new one in a large database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from spawnmesh_attachment_blob import garbage_store, store
from spawnmesh_attachment_blob.app import open_stores
from spawnmesh_attachment_blob.garbage_store import BEFORE_ALL_TOMBSTONES, Page
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.database import Connection

from tests.contract.attachment_blob_fixtures import BlobService, Tenant, blobs
from tests.contract.test_attachment_blob_ages import page_of, states

__all__ = ["blobs"]

DAY = 24 * 3600
TABLES = ("sets", "set_files", "uploads", "blobs")
OTHERS = (
    """insert into sets (tenant_id, set_id, session_id, state, state_time)
       select 'others-' || n, 'att_' || n, 'ses_' || n, (array['RELEASED', 'ATTACHED', 'STAGED'])[n % 3 + 1], now()
       from generate_series(1, 3000) n""",
    """insert into set_files
       select 'others-' || n, 'att_' || n, 0, 'a', 1, encode(sha256(n::text::bytea), 'hex'), 'text/plain' from generate_series(1, 3000) n""",
    """insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
       select 'others-' || n, encode(sha256(n::text::bytea), 'hex'), 1, (array['STORED', 'PENDING'])[n % 2 + 1], 'sha256/' || n
       from generate_series(1, 3000) n""",
    """insert into uploads (tenant_id, upload_id, session_id, name, size_bytes, sha256, mime_type, state, object_key, expire_time)
       select 'others-' || n, 'upl_' || n, 'ses_' || n, 'a', 1, encode(sha256(n::text::bytea), 'hex'), 'text/plain', 'COMPLETE',
           'sha256/' || n, now()
       from generate_series(1, 3000) n""",
)


@pytest.fixture(params=["nobody", "others"])
async def unknown(blobs: BlobService, postgres: Postgres, request: pytest.FixtureRequest) -> AsyncIterator[Tenant]:
    """A tenant of whose rows the planner was told nothing; it was told of an empty database, or of one with many other tenants."""
    tenant = blobs.tenant()
    await tenant.prepare()
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as superuser:
        await superuser.execute("set search_path to attachment_blob")
        await superuser.execute("truncate sets, set_files, uploads, upload_parts, blobs")
        for statement in OTHERS if request.param == "others" else ():
            await superuser.execute(statement)
        for table in TABLES:
            await superuser.execute(f"vacuum full analyze {table}")
            await superuser.execute(f"alter table {table} set (autovacuum_enabled = false)")
        yield tenant
        for table in TABLES:
            await superuser.execute(f"alter table {table} reset (autovacuum_enabled)")
        # A collector that another test starts would have to go through all of it.
        await superuser.execute("truncate sets, set_files, uploads, upload_parts, blobs")


async def insert(tenant: Tenant, *statements: str) -> None:
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        for statement in statements:
            await connection.execute(statement)


async def rows_read(connection: Connection) -> int:
    """How many rows the connection has read lately, also within functions; differences within a transaction count."""
    statement = """select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint as count from pg_stat_xact_user_tables
                   where relname = any(%s)"""
    row = await (await connection.execute(statement, (list(TABLES),))).fetchone()
    assert row is not None
    return int(row["count"])


@asynccontextmanager
async def reading_at_most(tenant: Tenant, limit: int) -> AsyncIterator[Connection]:
    """A transaction that reads at most so many rows."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        before = await rows_read(connection)
        yield connection
        assert await rows_read(connection) - before <= limit


OWN = "current_setting('spawnmesh.tenant')"
HASH = "encode(sha256(n::text::bytea), 'hex')"


def files(first: int) -> str:
    """Inserts a file for every other set, from this one on."""
    return f"insert into set_files select {OWN}, 'att_' || n, 0, 'a', 1, {HASH}, 'text/plain' from generate_series({first}, 20000, 2) n"


@pytest.fixture
async def grown(unknown: Tenant) -> Tenant:
    """Every other of its sets is RELEASED, the others are ATTACHED and have a file each."""
    await insert(
        unknown,
        f"""insert into sets (tenant_id, set_id, session_id, state, state_time)
           select {OWN}, 'att_' || n, 'ses_' || n, (array['RELEASED', 'ATTACHED'])[n % 2 + 1],
               now() - interval '40 days' - make_interval(secs => n)
           from generate_series(1, 20000) n""",
        files(1),
    )
    return unknown


STAGED = f"""insert into sets (tenant_id, set_id, session_id, state, state_time)
            select {OWN}, 'att_' || n, 'ses_' || n, 'STAGED', now() - interval '40 days' from generate_series(1, 20000) n"""
UNSETTLED = f"""insert into blobs (tenant_id, sha256, size_bytes, state, state_time, object_key)
               select {OWN}, {HASH}, 1, 'PENDING', now() - interval '40 days', 'sha256/' || {HASH} from generate_series(1, 20000) n"""
STORED = f"""insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
            select {OWN}, {HASH}, 1, 'STORED', 'sha256/' || {HASH} from generate_series(1, 40000) n"""
UPLOADS = f"""insert into uploads (tenant_id, upload_id, session_id, name, size_bytes, sha256, mime_type, state, object_key, expire_time)
             select {OWN}, 'upl_' || n, 'ses_' || n, 'a', 1, {HASH}, 'text/plain', 'COMPLETE', 'sha256/upl_' || n,
                 now() + (n % 2 - 0.5) * interval '1 day'
             from generate_series(1, 40000) n"""


@pytest.mark.parametrize(
    ("step", "statements", "count"),
    [
        (garbage_store.unremoved_sets, [], 0),
        (garbage_store.unremoved_sets, [files(2)], 10_000),
        (garbage_store.outlived_sets, [], 10_000),
        (garbage_store.abandoned_sets, ["delete from set_files", "delete from sets", STAGED], 20_000),
        (garbage_store.expired_uploads, [UPLOADS], 20_000),
        (garbage_store.unsettled_blobs, [UNSETTLED], 10_000),
        (garbage_store.unsettled_blobs, [UNSETTLED, UPLOADS], 0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value) if isinstance(value, int) else ""),
)
async def test_garbage_is_found_by_looking_at_each_row_a_few_times(
    grown: Tenant, step: Any, statements: list[str], count: int
) -> None:
    await insert(grown, *statements, "update attachment_tenants set retention_seconds = 60")
    after, found = "", 0
    async with reading_at_most(grown, 4 * 20_000) as connection:
        while page := await step(connection, grown.tenant_id, Page(after, 200), 60):
            found, after = found + len(page), page[-1]
        assert found == count


async def test_tombstones_are_read_and_deleted_page_by_page(grown: Tenant) -> None:
    limit, after = 200, BEFORE_ALL_TOMBSTONES
    async with reading_at_most(grown, 3 * 3 * limit) as connection:
        for _ in range(3):
            page = await garbage_store.old_tombstones(connection, grown.tenant_id, after, limit, 30 * DAY)
            gone = await garbage_store.forget_tombstones(connection, grown.tenant_id, after, page)
            assert (len(page), gone) == (limit, limit)
            after = page[-1]


async def test_all_pages_of_tombstones_go_in_one_collection(grown: Tenant) -> None:
    async with open_stores(grown.service.settings) as on:
        assert len(await page_of(on.database, grown, 20_000)) == 10_000

    await grown.collect()

    assert set((await states(grown)).values()) == {"ATTACHED"}
    assert len(await states(grown)) == 10_000


async def test_a_set_is_released_and_removed_by_reading_its_own_rows(grown: Tenant) -> None:
    """Three files of its own, one that another set has too, and one that an upload has."""
    own, tenant_id = "att_own", grown.tenant_id
    numbers = (20_001, 20_002, 20_003, 1, 40_000)
    await insert(
        grown,
        UPLOADS,
        STORED,
        f"insert into sets (tenant_id, set_id, session_id, state) select {OWN}, '{own}', 'ses_own', 'ATTACHED'",
        f"""insert into set_files select {OWN}, '{own}', n, 'f' || n, 1, {HASH}, 'text/plain'
            from unnest(array{list(numbers)}) n""",
        f"delete from uploads where tenant_id = {OWN} and upload_id in ('upl_20001', 'upl_20002', 'upl_20003')",
    )
    async with reading_at_most(grown, 100) as connection:
        assert await store.release_set(connection, tenant_id, own)
        assert len(await store.condemn_blobs_of_set(connection, tenant_id, own)) == 3
        condemned = await store.lock_condemned_blobs_of_set(connection, tenant_id, own)
        assert len(condemned) == 3
        await store.forget_blobs(connection, tenant_id, [blob.sha256 for blob in condemned])
        await store.forget_files(connection, tenant_id, own)


async def test_what_one_session_or_one_object_has_is_found_by_reading_it(grown: Tenant) -> None:
    tenant_id = grown.tenant_id
    async with reading_at_most(grown, 20) as connection:
        (found,) = await store.list_sets(connection, tenant_id, "ses_101", "", 20)
        assert (found.set_id, len(found.files)) == ("att_101", 1)
        assert await garbage_store.sets_of(connection, tenant_id, found.files[0].sha256) == ["att_101"]
