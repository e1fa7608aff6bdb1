"""What statements read of a tenant that has many rows and that the planner knows nothing of, as a new one in a large database."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from psycopg import AsyncConnection
from spawnmesh_attachment_blob import garbage_store, store, upload_store
from spawnmesh_attachment_blob.app import open_stores
from spawnmesh_attachment_blob.domain.comparison import BlobEntry
from spawnmesh_attachment_blob.domain.uploads import UploadKey, UploadSpec
from spawnmesh_attachment_blob.garbage_store import BEFORE_ALL_TOMBSTONES, Page
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.database import Connection

from tests.contract.attachment_blob_fixtures import BlobService, Tenant, blobs
from tests.contract.test_attachment_blob_ages import page_of, states

__all__ = ["blobs"]

DAY = 24 * 3600
ROWS = 5_000
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


@dataclass(frozen=True)
class Unknown(Tenant):
    """A tenant of whose rows the planner was told nothing, and a connection that writes them past the service's role."""

    superuser: AsyncConnection[tuple[Any, ...]] = field(kw_only=True)

    async def insert(self, *statements: str) -> None:
        for statement in statements:
            await self.superuser.execute(statement)


@pytest.fixture(params=["nobody", "others"])
async def unknown(blobs: BlobService, postgres: Postgres, request: pytest.FixtureRequest) -> AsyncIterator[Unknown]:
    """The planner was told of an empty database, or of one with many other tenants."""
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await AsyncConnection.connect(dsn, autocommit=True) as superuser:
        tenant = Unknown(blobs, superuser=superuser)
        await tenant.prepare()
        await superuser.execute("set search_path to attachment_blob")
        await superuser.execute("select set_config('spawnmesh.tenant', %s, false)", (tenant.tenant_id,))
        # Foreign keys are not looked up for each row: what is inserted here keeps them, and the look-ups cost more than all the rest.
        await superuser.execute("set session_replication_role to replica")
        await superuser.execute("truncate sets, set_files, uploads, upload_parts, blobs")
        for statement in OTHERS if request.param == "others" else ():
            await superuser.execute(statement)
        await superuser.execute(f"vacuum full analyze {', '.join(TABLES)}")
        for table in TABLES:
            await superuser.execute(f"alter table {table} set (autovacuum_enabled = false)")
        yield tenant
        for table in TABLES:
            await superuser.execute(f"alter table {table} reset (autovacuum_enabled)")
        # A collector that another test starts would have to go through all of it.
        await superuser.execute("truncate sets, set_files, uploads, upload_parts, blobs")


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
    return f"insert into set_files select {OWN}, 'att_' || n, 0, 'a', 1, {HASH}, 'text/plain' from generate_series({first}, {ROWS}, 2) n"


@pytest.fixture
async def grown(unknown: Unknown) -> Unknown:
    """Every other of its sets is RELEASED, the others are ATTACHED and have a file each."""
    await unknown.insert(
        f"""insert into sets (tenant_id, set_id, session_id, state, state_time)
           select {OWN}, 'att_' || n, 'ses_' || n, (array['RELEASED', 'ATTACHED'])[n % 2 + 1],
               now() - interval '40 days' - make_interval(secs => n)
           from generate_series(1, {ROWS}) n""",
        files(1),
    )
    return unknown


EMPTIED = [f"delete from {table} where tenant_id = {OWN}" for table in ("set_files", "sets")]
STAGED = f"""insert into sets (tenant_id, set_id, session_id, state, state_time)
            select {OWN}, 'att_' || n, 'ses_' || n, 'STAGED', now() - interval '40 days' from generate_series(1, {ROWS}) n"""
UNSETTLED = f"""insert into blobs (tenant_id, sha256, size_bytes, state, state_time, object_key)
               select {OWN}, {HASH}, 1, 'PENDING', now() - interval '40 days', 'sha256/' || {HASH} from generate_series(1, {ROWS}) n"""
STORED = f"""insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
            select {OWN}, {HASH}, 1, 'STORED', 'sha256/' || {HASH} from generate_series(1, {2 * ROWS}) n"""
UPLOADS = f"""insert into uploads (tenant_id, upload_id, session_id, name, size_bytes, sha256, mime_type, state, object_key, expire_time)
             select {OWN}, 'upl_' || n, 'ses_' || n, 'a', 1, {HASH}, 'text/plain', 'COMPLETE', 'sha256/upl_' || n,
                 now() + (n % 2 - 0.5) * interval '1 day'
             from generate_series(1, {2 * ROWS}) n"""


@pytest.mark.parametrize(
    ("step", "statements", "count"),
    [
        (garbage_store.unremoved_sets, [], 0),
        (garbage_store.unremoved_sets, [files(2)], ROWS // 2),
        (garbage_store.outlived_sets, [], ROWS // 2),
        (garbage_store.abandoned_sets, [*EMPTIED, STAGED], ROWS),
        (garbage_store.expired_uploads, [UPLOADS], ROWS),
        (garbage_store.unsettled_blobs, [UNSETTLED], ROWS // 2),
        (garbage_store.unsettled_blobs, [UNSETTLED, UPLOADS], 0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value) if isinstance(value, int) else ""),
)
async def test_garbage_is_found_by_looking_at_each_row_a_few_times(
    grown: Unknown, step: Any, statements: list[str], count: int
) -> None:
    await grown.insert(*statements, f"update attachment_tenants set retention_seconds = 60 where tenant_id = {OWN}")
    after, found = "", 0
    async with reading_at_most(grown, 4 * ROWS) as connection:
        while page := await step(connection, grown.tenant_id, Page(after, 200), 60):
            found, after = found + len(page), page[-1]
        assert found == count


async def test_tombstones_are_read_and_deleted_page_by_page(grown: Unknown) -> None:
    limit, after = 200, BEFORE_ALL_TOMBSTONES
    async with reading_at_most(grown, 3 * 3 * limit) as connection:
        for _ in range(3):
            page = await garbage_store.old_tombstones(connection, grown.tenant_id, after, limit, 30 * DAY)
            gone = await garbage_store.forget_tombstones(connection, grown.tenant_id, after, page)
            assert (len(page), gone) == (limit, limit)
            after = page[-1]


async def test_all_pages_of_tombstones_go_in_one_collection(grown: Unknown) -> None:
    async with open_stores(grown.service.settings) as on:
        assert len(await page_of(on.database, grown, ROWS)) == ROWS // 2

    await grown.collect()

    assert set((await states(grown)).values()) == {"ATTACHED"}
    assert len(await states(grown)) == ROWS // 2


async def test_a_set_is_released_and_removed_by_reading_its_own_rows(grown: Unknown) -> None:
    """Three files of its own, one that another set has too, and one that an upload has."""
    own, tenant_id = "att_own", grown.tenant_id
    numbers = (ROWS + 1, ROWS + 2, ROWS + 3, 1, 2 * ROWS)
    await grown.insert(
        UPLOADS,
        STORED,
        f"insert into sets (tenant_id, set_id, session_id, state) select {OWN}, '{own}', 'ses_own', 'ATTACHED'",
        f"""insert into set_files select {OWN}, '{own}', n, 'f' || n, 1, {HASH}, 'text/plain'
            from unnest(array{list(numbers)}) n""",
        f"delete from uploads where tenant_id = {OWN} and upload_id in ('upl_{ROWS + 1}', 'upl_{ROWS + 2}', 'upl_{ROWS + 3}')",
    )
    async with reading_at_most(grown, 100) as connection:
        assert await store.release_set(connection, tenant_id, own)
        assert len(await store.condemn_blobs_of_set(connection, tenant_id, own)) == 3
        condemned = await store.lock_condemned_blobs_of_set(connection, tenant_id, own)
        assert len(condemned) == 3
        await store.forget_blobs(connection, tenant_id, [blob.sha256 for blob in condemned])
        await store.forget_files(connection, tenant_id, own)


async def test_what_one_session_or_one_object_has_is_found_by_reading_it(grown: Unknown) -> None:
    tenant_id = grown.tenant_id
    async with reading_at_most(grown, 20) as connection:
        (found,) = await store.list_sets(connection, tenant_id, "ses_101", "", 20)
        assert (found.set_id, len(found.files)) == ("att_101", 1)
        assert await garbage_store.sets_of(connection, tenant_id, found.files[0].sha256) == ["att_101"]


@pytest.mark.parametrize(("hashed", "has_it"), [("own", True), ("1", False)])
async def test_what_is_within_a_sessions_reach_is_found_by_reading_its_own_sets(
    grown: Unknown, hashed: str, has_it: bool
) -> None:
    """A session with two sets and many payloads. The bytes are those of one of the sets, or another session's."""
    tenant_id, own = grown.tenant_id, "encode(sha256('own'), 'hex')"
    await grown.insert(
        STORED,
        f"insert into blobs (tenant_id, sha256, size_bytes, state, object_key) select {OWN}, {own}, 1, 'STORED', 'sha256/own'",
        f"""insert into sets (tenant_id, set_id, session_id, state)
            select {OWN}, 'blb_' || n, 'ses_own', 'STAGED' from generate_series(1, {ROWS}) n
            union all select {OWN}, 'att_own' || n, 'ses_own', 'ATTACHED' from generate_series(1, 2) n""",
        f"insert into set_files select {OWN}, 'blb_' || n, 0, 'blob', 1, {own}, '' from generate_series(1, {ROWS}) n",
        f"insert into set_files select {OWN}, 'att_own2', n, 'f' || n, 1, {own}, '' from generate_series(1, 2) n",
    )
    spec = UploadSpec("upl_new", "f", 1, hashlib.sha256(hashed.encode()).hexdigest(), "")
    async with reading_at_most(grown, 20) as connection:
        assert await upload_store.lock_stored_blob(connection, tenant_id, spec, "ses_own") is has_it


OPENED = f"""insert into uploads (tenant_id, upload_id, session_id, name, size_bytes, sha256, mime_type, state, object_key, expire_time)
             select {OWN}, 'upl_' || n || suffix, session_id, 'a', 1, {HASH}, 'text/plain', 'OPEN', 'sha256/' || n || suffix,
                 now() + interval '1 day'
             from generate_series(1, {ROWS}) n, lateral (values ('', 'ses_' || n), ('.', '')) of (suffix, session_id)"""


@pytest.mark.parametrize("key", [UploadKey("", "upl_101"), UploadKey("ses_101", "upl_101")], ids=["client", "run"])
async def test_an_owners_upload_is_found_by_reading_it(grown: Unknown, key: UploadKey) -> None:
    """A tenant with many uploads, of many sessions and of clients."""
    tenant_id, taken = grown.tenant_id, UploadSpec("upl_103", "a", 1, "0" * 64, "")
    await grown.insert(OPENED)
    async with reading_at_most(grown, 20) as connection:
        await upload_store.insert(connection, tenant_id, taken, key.session_id, "sha256/new", 60)
        for upload_id in (key.upload_id, taken.upload_id):
            row_id = await upload_store.lock(connection, tenant_id, UploadKey(key.session_id, upload_id))
            found = await upload_store.get(connection, tenant_id, UploadKey(key.session_id, upload_id))
            assert found is not None
            assert found.row_id == row_id
            assert await upload_store.parts(connection, tenant_id, found.row_id) == []
        tenant = await store.get_tenant(connection, tenant_id, "", ["upl_101", "upl_102"], key.session_id)
        assert tenant is not None
        assert tenant.uploads.keys() == ({"upl_101"} if key.session_id else {"upl_101", "upl_102"})


async def test_what_was_lost_is_found_by_reading_it(grown: Unknown) -> None:
    tenant_id, sha256 = grown.tenant_id, hashlib.sha256(b"101").hexdigest()
    await grown.insert(UPLOADS, STORED)
    blob = BlobEntry(f"sha256/{sha256}", sha256, 1, is_stored=True)

    async with reading_at_most(grown, 60) as connection:
        await garbage_store.mark_lost(connection, tenant_id, blob)
        await garbage_store.forget_lost_uploads(connection, tenant_id, sha256)
        await garbage_store.mark_found(connection, tenant_id, blob)
    assert "upl_101" not in {row["upload_id"] for row in await grown.rows("uploads")}
    (found,) = (row for row in await grown.rows("blobs") if row["sha256"] == sha256)
    assert found["state"] == "STORED"
    assert found["state_time"] > found["create_time"], "it was marked twice"
