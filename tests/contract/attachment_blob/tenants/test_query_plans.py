"""Statements read few rows of a large tenant without statistics, as of a new one."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from psycopg import AsyncConnection
from spawnmesh_attachment_blob.app import open_dependencies
from spawnmesh_attachment_blob.domain.comparison import BlobEntry
from spawnmesh_attachment_blob.domain.items import FileRef
from spawnmesh_attachment_blob.domain.uploads import UploadKey, UploadSpec
from spawnmesh_attachment_blob.store import blobs as blobs_store
from spawnmesh_attachment_blob.store import garbage, sets, tenants, uploads
from spawnmesh_attachment_blob.store.garbage import BEFORE_ALL_TOMBSTONES, KeyPage
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.database import Connection

from tests.support.attachment_blob.fixtures import BlobService, Tenant
from tests.support.attachment_blob.tombstones import page_of, states

DAY = 24 * 3600
ROWS = 2_000
TABLES = ("sets", "set_files", "uploads", "blobs")
OTHERS = (
    """insert into sets (tenant_id, set_id, session_id, state, state_time)
       select 'others-' || n, 'att_' || n, 'ses_' || n,
           (array['RELEASED', 'ATTACHED', 'STAGED'])[n % 3 + 1], now()
       from generate_series(1, 3000) n""",
    """insert into set_files
       select 'others-' || n, 'att_' || n, 0, 'a', 1, encode(sha256(n::text::bytea), 'hex'), 'text/plain'
       from generate_series(1, 3000) n""",
    """insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
       select 'others-' || n, encode(sha256(n::text::bytea), 'hex'), 1,
           (array['STORED', 'LOST'])[n % 2 + 1], 'sha256/' || n
       from generate_series(1, 3000) n""",
    """insert into uploads
                 (tenant_id, upload_id, session_id, name, size_bytes, sha256, mime_type, state,
                  object_key, expire_time)
       select 'others-' || n, 'upl_' || n, 'ses_' || n, 'a', 1,
           encode(sha256(n::text::bytea), 'hex'), 'text/plain', 'COMPLETE',
           'sha256/' || n, now()
       from generate_series(1, 3000) n""",
)


@dataclass(frozen=True)
class Unknown(Tenant):
    """A tenant without statistics, and a superuser's connection that writes its rows."""

    superuser: AsyncConnection[tuple[Any, ...]] = field(kw_only=True)

    async def insert(self, *statements: str) -> None:
        for statement in statements:
            await self.superuser.execute(statement)


@pytest.fixture(scope="module", params=["nobody", "others"])
async def superuser(
    blobs: BlobService, postgres: Postgres, request: pytest.FixtureRequest
) -> AsyncIterator[AsyncConnection[tuple[Any, ...]]]:
    """The statistics are those of an empty database, or of one with many other tenants."""
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await AsyncConnection.connect(dsn, autocommit=True) as superuser:
        await superuser.execute("set search_path to attachment_blob")
        # Skip the checks of foreign keys. The inserted rows satisfy them, and the checks would take
        # longer than all other work.
        await superuser.execute("set session_replication_role to replica")
        await superuser.execute("truncate sets, set_files, uploads, upload_parts, blobs")
        for statement in OTHERS if request.param == "others" else ():
            await superuser.execute(statement)
        await superuser.execute(f"vacuum full analyze {', '.join(TABLES)}")
        for table in TABLES:
            await superuser.execute(f"alter table {table} set (autovacuum_enabled = false)")
        yield superuser
        for table in TABLES:
            await superuser.execute(f"alter table {table} reset (autovacuum_enabled)")
        # The collector of another test would otherwise process all these rows.
        await superuser.execute("truncate sets, set_files, uploads, upload_parts, blobs")


@pytest.fixture
async def unknown(blobs: BlobService, superuser: AsyncConnection[tuple[Any, ...]]) -> AsyncIterator[Unknown]:
    """A tenant that the statistics do not know. At the end the tables are as large as before."""
    tenant = Unknown(blobs, superuser=superuser)
    await tenant.prepare()
    # More than the rows that a test inserts, which nobody counted.
    counted = "update attachment_tenants set stored_bytes = 1000000 where tenant_id = %s"
    await superuser.execute(counted, (tenant.tenant_id,))
    await superuser.execute("select set_config('spawnmesh.tenant', %s, false)", (tenant.tenant_id,))
    yield tenant
    for table in (*TABLES, "upload_parts"):
        await superuser.execute(f"delete from {table} where tenant_id not like 'others-%'")
    await superuser.execute(f"vacuum {', '.join(TABLES)}")


async def rows_read(connection: Connection) -> int:
    """Return how many rows the connection read. Compare two results of one transaction."""
    statement = """select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint as count
                   from pg_stat_xact_user_tables
                   where relname = any(%s)"""
    row = await (await connection.execute(statement, (list(TABLES),))).fetchone()
    assert row is not None
    return int(row["count"])


@asynccontextmanager
async def reading_at_most(tenant: Tenant, limit: int) -> AsyncIterator[Connection]:
    """Open a transaction that may read at most so many rows."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        before = await rows_read(connection)
        yield connection
        assert await rows_read(connection) - before <= limit


OWN = "current_setting('spawnmesh.tenant')"
HASH = "encode(sha256(n::text::bytea), 'hex')"


def files(first: int) -> str:
    """Build an insert of a file for every other set, from this one on."""
    return f"""insert into set_files select {OWN}, 'att_' || n, 0, 'a', 1, {HASH}, 'text/plain'
               from generate_series({first}, {ROWS}, 2) n"""


@pytest.fixture
async def grown(unknown: Unknown) -> Unknown:
    """Every other set is RELEASED. The others are ATTACHED and have one file each."""
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
            select {OWN}, 'att_' || n, 'ses_' || n, 'STAGED', now() - interval '40 days'
            from generate_series(1, {ROWS}) n"""
UNSETTLED = f"""insert into blobs (tenant_id, sha256, size_bytes, state, state_time, object_key)
               select {OWN}, {HASH}, 1, 'LOST', now() - interval '40 days', 'sha256/' || {HASH}
               from generate_series(1, {ROWS}) n"""
STORED = f"""insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
            select {OWN}, {HASH}, 1, 'STORED', 'sha256/' || {HASH} from generate_series(1, {2 * ROWS}) n"""
UPLOADS = f"""insert into uploads
                 (tenant_id, upload_id, session_id, name, size_bytes, sha256, mime_type, state,
                  object_key, expire_time)
             select {OWN}, 'upl_' || n, 'ses_' || n, 'a', 1, {HASH}, 'text/plain', 'COMPLETE',
                 'sha256/upl_' || n,
                 now() + (n % 2 - 0.5) * interval '1 day'
             from generate_series(1, {2 * ROWS}) n"""


@pytest.mark.parametrize(
    ("step", "statements", "count"),
    [
        (garbage.unremoved_sets, [], 0),
        (garbage.unremoved_sets, [files(2)], ROWS // 2),
        (garbage.outlived_sets, [], ROWS // 2),
        (garbage.abandoned_sets, [*EMPTIED, STAGED], ROWS),
        (garbage.expired_uploads, [UPLOADS], ROWS),
        (garbage.unsettled_blobs, [UNSETTLED], ROWS // 2),
        (garbage.unsettled_blobs, [UNSETTLED, UPLOADS], 0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value) if isinstance(value, int) else ""),
)
async def test_garbage_queries_read_each_row_a_few_times(
    grown: Unknown, step: Any, statements: list[str], count: int
) -> None:
    await grown.insert(
        *statements, f"update attachment_tenants set retention_seconds = 60 where tenant_id = {OWN}"
    )
    after, found = "", 0
    async with reading_at_most(grown, 4 * ROWS) as connection:
        while page := await step(connection, grown.tenant_id, KeyPage(after, 200), 60):
            found, after = found + len(page), page[-1]
        assert found == count


async def test_tombstones_are_read_and_deleted_page_by_page(grown: Unknown) -> None:
    limit, after = 200, BEFORE_ALL_TOMBSTONES
    async with reading_at_most(grown, 3 * 3 * limit) as connection:
        for _ in range(3):
            page = await garbage.old_tombstones(connection, grown.tenant_id, after, limit, 30 * DAY)
            gone = await garbage.delete_tombstones(connection, grown.tenant_id, after, page)
            assert (len(page), gone) == (limit, limit)
            after = page[-1]


async def test_one_collection_deletes_all_pages_of_tombstones(grown: Unknown) -> None:
    async with open_dependencies(grown.service.settings) as on:
        assert len(await page_of(on.database, grown, ROWS)) == ROWS // 2

    await grown.collect()

    assert set((await states(grown)).values()) == {"ATTACHED"}
    assert len(await states(grown)) == ROWS // 2


async def test_a_release_reads_only_the_rows_of_its_set(grown: Unknown) -> None:
    """The set has three files of its own, one of another set and one of an upload."""
    own, tenant_id = "att_own", grown.tenant_id
    numbers = (ROWS + 1, ROWS + 2, ROWS + 3, 1, 2 * ROWS)
    await grown.insert(
        UPLOADS,
        STORED,
        f"""insert into sets (tenant_id, set_id, session_id, state)
            select {OWN}, '{own}', 'ses_own', 'ATTACHED'""",
        f"""insert into set_files select {OWN}, '{own}', n, 'f' || n, 1, {HASH}, 'text/plain'
            from unnest(array{list(numbers)}) n""",
        f"""delete from uploads
            where tenant_id = {OWN}
                and upload_id in ('upl_{ROWS + 1}', 'upl_{ROWS + 2}', 'upl_{ROWS + 3}')""",
    )
    async with reading_at_most(grown, 100) as connection:
        assert await sets.release_set(connection, tenant_id, own)
        assert len(await blobs_store.mark_blobs_of_set(connection, tenant_id, own)) == 3
        condemned = await blobs_store.lock_marked_blobs_of_set(connection, tenant_id, own)
        assert len(condemned) == 3
        await blobs_store.delete_blobs(connection, tenant_id, [blob.sha256 for blob in condemned])
        await sets.delete_files(connection, tenant_id, own)


async def test_sets_of_a_session_and_of_a_hash_are_found_by_index(grown: Unknown) -> None:
    tenant_id = grown.tenant_id
    async with reading_at_most(grown, 20) as connection:
        (found,) = await sets.list_sets(connection, tenant_id, "ses_101", "", 20)
        assert (found.set_id, len(found.files)) == ("att_101", 1)
        assert await garbage.stored_sets_of(connection, tenant_id, found.files[0].sha256) == ["att_101"]


async def test_referenced_files_are_found_by_index(grown: Unknown) -> None:
    """Two files of one set, one of another, and some that do not exist."""
    tenant_id = grown.tenant_id
    await grown.insert(
        STORED,
        f"""insert into set_files select {OWN}, 'att_101', n, 'f' || n, 1, {HASH}, 'text/plain'
            from generate_series(1, 10) n""",
        f"""update blobs set state = 'LOST' where tenant_id = {OWN} and sha256 in (
                encode(sha256('3'), 'hex'), encode(sha256('103'), 'hex'), encode(sha256('5'), 'hex')
            )""",
    )
    named = [("att_101", "f2"), ("att_101", "f3"), ("att_103", "a"), ("att_103", "f5"), ("att_105", "f2")]
    refs = [FileRef(set_id, name, "") for set_id, name in [*named, ("att_none", "a"), ("att_102", "a")]]
    async with reading_at_most(grown, 60) as connection:
        found = await sets.list_referenced_sets(connection, tenant_id, refs)

    files = {set_id: [file.name for file in one.files] for set_id, one in found.by_id.items()}
    assert files == {"att_101": ["f2", "f3"], "att_102": [], "att_103": ["a"], "att_105": []}
    assert found.lost_hashes == {hashlib.sha256(content).hexdigest() for content in (b"3", b"103")}


@pytest.mark.parametrize(("hashed", "has_it"), [("own", True), ("1", False)])
async def test_bytes_that_a_session_may_read_are_found_by_index(
    grown: Unknown, hashed: str, has_it: bool
) -> None:
    """A session with two sets and many payloads. The bytes are its own or another session's."""
    tenant_id, own = grown.tenant_id, "encode(sha256('own'), 'hex')"
    await grown.insert(
        STORED,
        f"""insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
            select {OWN}, {own}, 1, 'STORED', 'sha256/own'""",
        f"""insert into sets (tenant_id, set_id, session_id, state)
            select {OWN}, 'blb_' || n, 'ses_own', 'STAGED' from generate_series(1, {ROWS}) n
            union all select {OWN}, 'att_own' || n, 'ses_own', 'ATTACHED' from generate_series(1, 2) n""",
        f"""insert into set_files select {OWN}, 'blb_' || n, 0, 'blob', 1, {own}, ''
            from generate_series(1, {ROWS}) n""",
        f"""insert into set_files select {OWN}, 'att_own2', n, 'f' || n, 1, {own}, ''
            from generate_series(1, 2) n""",
    )
    spec = UploadSpec("upl_new", "f", 1, hashlib.sha256(hashed.encode()).hexdigest(), "")
    async with reading_at_most(grown, 20) as connection:
        assert await blobs_store.lock_stored_blob(connection, tenant_id, spec, "ses_own") is has_it


OPENED = f"""insert into uploads
                 (tenant_id, upload_id, session_id, name, size_bytes, sha256, mime_type, state,
                  object_key, expire_time)
             select {OWN}, 'upl_' || n, session_id, 'a', 1, {HASH}, 'text/plain', 'OPEN',
                 'sha256/' || n || suffix,
                 now() + interval '1 day'
             from generate_series(1, {ROWS}) n,
                 lateral (values ('', 'ses_' || n), ('.', '')) of (suffix, session_id)"""


@pytest.mark.parametrize(
    "key", [UploadKey("", "upl_101"), UploadKey("ses_101", "upl_101")], ids=["client", "run"]
)
async def test_an_upload_is_found_by_index(grown: Unknown, key: UploadKey) -> None:
    """A tenant with many uploads of many sessions and of clients."""
    tenant_id, taken = grown.tenant_id, UploadSpec("upl_103", "a", 1, "0" * 64, "")
    await grown.insert(OPENED)
    async with reading_at_most(grown, 20) as connection:
        await uploads.insert_upload(connection, tenant_id, taken, key.session_id, "sha256/new", 60)
        for upload_id in (key.upload_id, taken.upload_id):
            own = UploadKey(key.session_id, upload_id)
            assert await uploads.lock_upload(connection, tenant_id, own)
            found = await uploads.get_upload(connection, tenant_id, own)
            assert found is not None
            assert found.key == own
            assert await uploads.list_parts(connection, tenant_id, own) == []
        named = [UploadKey(key.session_id, upload_id) for upload_id in ("upl_101", "upl_102")]
        tenant = await tenants.get_tenant(connection, tenant_id, "", named)
        assert tenant is not None
        assert tenant.uploads.keys() == ({"upl_101"} if key.session_id else {"upl_101", "upl_102"})


async def test_lost_bytes_are_found_by_index(grown: Unknown) -> None:
    tenant_id, sha256 = grown.tenant_id, hashlib.sha256(b"101").hexdigest()
    await grown.insert(UPLOADS, STORED)
    blob = BlobEntry(f"sha256/{sha256}", sha256, 1, is_stored=True)

    async with reading_at_most(grown, 60) as connection:
        await blobs_store.mark_lost(connection, tenant_id, blob)
        await uploads.delete_lost_uploads(connection, tenant_id, sha256)
        await blobs_store.mark_found(connection, tenant_id, blob)
    assert "upl_101" not in {row["upload_id"] for row in await grown.rows("uploads")}
    (found,) = (row for row in await grown.rows("blobs") if row["sha256"] == sha256)
    assert found["state"] == "STORED"
    assert found["state_time"] > found["create_time"], "it was marked twice"
