"""Statements read only the rows that they return, also in a long transcript of a tenant without
planner statistics."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from spawnmesh.transcript.v1 import archive_service_pb2 as archive_pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn, create_service_database
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_postgres.database import Connection, Database, open_database
from spawnmesh_postgres.tenant_tables import delete_rows
from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.drafts import DraftId
from spawnmesh_transcript.domain.entries import WriterClaim
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.activity_recorder import open_activity_recorder
from spawnmesh_transcript.operations.payload_uploader import open_payload_uploader
from spawnmesh_transcript.operations.session_files.chunk_import import import_chunks
from spawnmesh_transcript.operations.session_files.import_threads import open_import_threads
from spawnmesh_transcript.operations.session_files.line_storage import Importer
from spawnmesh_transcript.store import drafts as draft_store
from spawnmesh_transcript.store import imports as import_store
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import summaries as summary_store
from spawnmesh_transcript.store import tier as tier_store
from spawnmesh_transcript.store.tenants import TENANT_TABLES

from tests.support.cpu_workers import cpu_workers
from tests.support.transcript.append_works import appended, chained, plainly
from tests.support.transcript.bodies import assistant
from tests.support.transcript.files import HEADER, file_of, message
from tests.support.transcript.fixtures import Service, Session
from tests.support.transcript.long_transcripts import FILL, FILL_OTHER_TENANTS, FILL_SMALL_TABLES, ROWS
from tests.support.transcript.rows_read import Counted, Work, rows_read
from tests.support.transcript.statements import all_statements
from tests.support.transcript.tables import Superuser

TABLES = (
    "transcripts",
    "entries",
    "stubs",
    "payloads",
    "summaries",
    "activities",
    "appends",
    "draft_pieces",
)

STATEMENTS = all_statements()


@pytest.fixture(scope="module")
async def postgres(watchdog: Watchdog) -> AsyncIterator[Postgres]:
    """A server for these tests alone: rows that other tests leave decide on plans, too."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-postgres-") as folder:
        root = Path(folder)
        async with Postgres(root / "data", root / "postgres.log", watchdog, lambda _line: None) as server:
            yield server


@pytest.fixture(scope="module")
async def databases(postgres: Postgres) -> dict[str, ServiceDsn]:
    return await create_service_database(postgres.superuser_dsn, ["transcript"])


@pytest.fixture(params=["indexes as they were made", "primary keys made anew"])
async def statistics(
    service: Service, superuser: Superuser, request: pytest.FixtureRequest
) -> AsyncIterator[None]:
    """Freeze the planner's statistics. Among indexes of equal cost the planner takes one by age,
    on which no statement may depend."""
    for table in TABLES:
        await superuser.execute(f"alter table {table} set (autovacuum_enabled = false)")
        # Rows that the test before left dead would make some indexes dearer than others.
        await superuser.execute(f"vacuum (full, analyze) {table}")
        if request.param == "primary keys made anew":
            await superuser.execute(f"reindex index concurrently {table}_pkey")
    yield
    for table in TABLES:
        await superuser.execute(f"alter table {table} reset (autovacuum_enabled)")


@pytest.fixture(params=["few others", "many others"])
async def others(
    service: Service, superuser: Superuser, request: pytest.FixtureRequest
) -> AsyncIterator[None]:
    """Tenants with planner statistics: all of them by name, or an average number of rows."""
    short = service.session()
    await short.create()
    await short.append([assistant("word")], claim=await short.acquire(1))
    for statement in FILL_OTHER_TENANTS if request.param == "many others" else ():
        await superuser.execute(statement)
    yield
    for table in ("entries", "payloads", "activities", "imports", "summaries", "draft_pieces"):
        await superuser.execute(f"delete from {table} where tenant_id like 'other-%'")
    await _remove(short)


@pytest.fixture
async def long(others: None, statistics: None, service: Service, superuser: Superuser) -> AsyncIterator[Key]:
    """A long transcript of another tenant."""
    grown = service.session()
    await grown.create()
    await grown.sibling().create()
    parameters = {"tenant_id": grown.tenant_id, "session_id": grown.session_id, "rows": ROWS}
    for statement in FILL:
        await superuser.execute(statement, parameters)
    for statement in FILL_SMALL_TABLES:
        await superuser.execute(statement)
    yield Key(grown.tenant_id, grown.session_id)
    await _remove(grown)


async def _remove(session: Session) -> None:
    while not (await session.purge_tenant()).done:
        pass


@pytest.fixture
async def database(service: Service) -> AsyncIterator[Database]:
    async with open_database(service.dsn.app, name="reading", max_connections=1) as database:
        yield database


def entry_ids(first: int, last: int) -> list[str]:
    return [f"ent_{n}" for n in range(first, last)]


def blob_ids(first: int, last: int) -> list[str]:
    return [f"blb_{n}" for n in range(first, last)]


def statement_work(name: str, **parameters: Any) -> Work:
    """Return the statement alone."""

    async def work(connection: Connection, key: Key) -> None:
        asked = {"tenant_id": key.tenant_id, "session_id": key.session_id, **parameters}
        await connection.execute(STATEMENTS[name], asked)

    return work


def purge_work(table: str) -> Work:
    """Return the deletion of a page of the tenant's rows."""

    async def work(connection: Connection, key: Key) -> None:
        keys = await TENANT_TABLES.read_keys(connection)
        await delete_rows(connection, key.tenant_id, table, keys, 200)

    return work


async def stored(connection: Connection, key: Key) -> None:
    usable = await payload_store.mark_stored(connection, key, blob_ids(ROWS - 100, ROWS - 68))
    assert sorted(stub.seq for stub in usable) == [*range(ROWS - 100, ROWS - 68)]


async def released(connection: Connection, key: Key) -> None:
    await payload_store.delete_payloads(connection, key, blob_ids(ROWS - 100, ROWS - 68))


async def dropped_and_restored(connection: Connection, key: Key) -> None:
    """Move payloads to the blob store and back."""
    await payload_store.mark_stored(connection, key, blob_ids(ROWS - 100, ROWS - 84))
    for seq in range(ROWS - 100, ROWS - 84):
        asked = {"tenant_id": key.tenant_id, "session_id": key.session_id, "seq": seq}
        shorter = {**asked, "whole_bytes": 50, "blob_ids": blob_ids(seq, seq + 1), "body": b"short"}
        for name, parameters in (
            ("drop_inline_payload", shorter),
            ("restore_inline_payload", {**asked, "body": b"x" * 50}),
        ):
            rows = await (await connection.execute(STATEMENTS[name], parameters)).fetchall()
            assert rows == [{"byte_count": 45}]


async def recorded(connection: Connection, key: Key) -> None:
    """An entry that has payloads already."""
    asked = {
        "tenant_id": key.tenant_id,
        "session_id": key.session_id,
        "seqs": [],
        "token_counts": [],
        "token_vocabularies": [],
        "stub_bodies": [],
        "files": Jsonb([{"seq": seq} for seq in range(ROWS - 100, ROWS - 84)]),
    }
    rows = await connection.execute(STATEMENTS["record_payloads"], asked)
    assert await rows.fetchall() == []


async def kept(connection: Connection, key: Key) -> None:
    found = await summary_store.read_kept(connection, key, after_seq=ROWS - 3)
    assert found.first_entry_id == f"ent_{ROWS}"


async def drafted(connection: Connection, key: Key) -> None:
    known, claim = DraftId("", 0, 1), WriterClaim("", 0)
    draft = await draft_store.read_draft(connection, key, claim, known, ROWS - 3)
    assert draft is not None
    assert [piece.offset for piece in draft.pieces] == [ROWS - 3, ROWS - 2]


WORKS: dict[str, tuple[Work, int]] = {
    "known ids": (
        lambda connection, key: import_store.find_entry_seqs(
            connection, key, entry_ids(ROWS - 300, ROWS - 200)
        ),
        100,
    ),
    "an import in progress": (statement_work("lock_import", incarnation=""), 3),
    "stale imports": (
        lambda connection, key: import_store.list_stale_imports(connection, key.tenant_id, age_seconds=60),
        110,
    ),
    "the end of a branch": (
        statement_work("list_messages_off_branch", leaf_entry_id=f"ent_{ROWS - 1}"),
        ROWS + 10,
    ),
    "the newest summary on a branch": (
        statement_work(
            "find_newest_on_branch", leaf_entry_id=f"ent_{ROWS - 1}", entry_ids=[f"ent_{ROWS - 9}"]
        ),
        ROWS + 10,
    ),
    "a summary of an import": (
        statement_work(
            "insert_imported_summary",
            seq=ROWS - 1,
            entry_id=f"ent_{ROWS - 1}",
            last_source_seq=ROWS - 300,
            token_count=1,
        ),
        2 * ROWS,
    ),
    "an append": (plainly(1), 3),
    "appends that share a transaction": (plainly(16), 48),
    "appends that share a call": (chained, 48),
    "a label": (appended("APPENDED", f"ent_{ROWS - 3}"), 25),
    "a label on an unknown entry": (appended("TARGET_NOT_FOUND", new_id(IdKind.ENTRY)), 25),
    "a repeated append": (appended("REPLAYED", f"ent_{ROWS - 3}", f"key-{ROWS - 9}"), 20),
    "the newest message of a user": (statement_work("read_newest_user_turn"), 10),
    "superseded messages": (
        lambda connection, key: summary_store.count_superseded(connection, key, after_seq=ROWS - 300),
        300,
    ),
    "entries that a compaction keeps": (kept, 50),
    "possible sources of a summary": (
        statement_work("scan_sources", after_seq=ROWS - 300, row_count=50),
        250,
    ),
    "sources of a summary": (
        statement_work(
            "list_sources",
            after_seq=ROWS - 300,
            last_source_seq=ROWS - 10,
            marked_before_seq=ROWS,
            page_size=20,
            max_bytes=10_000,
        ),
        250,
    ),
    "a page to verify": (
        statement_work("list_chain_entries", first_seq=ROWS - 300, page_size=50, max_bytes=10_000),
        60,
    ),
    "the hash before a page": (statement_work("read_chain_hash", seq=ROWS - 300), 3),
    "a summary to publish": (
        statement_work("read_published_summary", seq=ROWS - 20, entry_id=f"ent_{ROWS - 20}"),
        10,
    ),
    "the new pieces of a draft": (drafted, 12),
    "a piece of a draft": (
        statement_work(
            "write_draft",
            run_id="",
            epoch=0,
            number=1,
            after_seq=ROWS,
            offset=ROWS - 1,
            end_offset=ROWS + 1,
            begins=[ROWS - 1, ROWS],
            ends=[ROWS, ROWS + 1],
            kinds=["TEXT", "THINKING"],
            call_ids=["", ""],
            names=["", ""],
            begin_calls=[False, False],
            texts=[b"y", b"z"],
            count=2,
            model="m",
            max_bytes=10 * ROWS,
            max_pieces=10 * ROWS,
            max_entries=1_000,
        ),
        12,
    ),
    "a claim": (statement_work("move_claim", run_id="run", epoch=1, new_run_id="run"), 3 * ROWS),
    "counts": (statement_work("scan_counts", after_seq=ROWS - 200, row_count=64), 150),
    "stored payloads": (stored, 400),
    "payloads dropped and restored": (dropped_and_restored, 800),
    "recorded payloads": (recorded, 100),
    "files of entries": (
        lambda connection, key: payload_store.list_stored_files(
            connection, key, range(ROWS - 100, ROWS - 68)
        ),
        64,
    ),
    "payloads of entries": (
        lambda connection, key: tier_store.list_payloads(connection, key, range(ROWS - 100, ROWS - 68)),
        64,
    ),
    "references": (statement_work("read_stub_bodies", seqs=[*range(ROWS - 100, ROWS - 68)]), 64),
    "released payloads": (released, 100),
    "a file": (
        lambda connection, key: payload_store.read_payload(
            connection, key.tenant_id, blob_ids(ROWS - 5, ROWS - 4)[0]
        ),
        10,
    ),
    "activities of a session": (
        statement_work("list_session_activities", after_position=30, row_count=100),
        100,
    ),
    "a family": (statement_work("list_family"), 30),
    "an ancestor": (statement_work("is_descendant", ancestor_id="ses_of_others"), 10),
    "transcripts with inline payloads": (
        lambda connection, key: tier_store.list_transcripts_with_inline_payloads(
            connection, key.tenant_id, after_session_id="", row_count=100
        ),
        ROWS + 20,
    ),
    **{
        name: (statement_work(name, row_count=200, days=7), 600)
        for name in (
            "delete_entries",
            "delete_payload_rows",
            "delete_activities",
            "forget_activities",
        )
    },
    **{f"purge of {table}": (purge_work(table), 3 * ROWS) for table in TABLES},
}


async def test_statements_read_no_more_rows_than_they_need(long: Key, database: Database) -> None:
    read = {name: await rows_read(database, long, work) for name, (work, _) in WORKS.items()}
    assert {name: rows for name, rows in read.items() if rows > WORKS[name][1]} == {}


async def test_imports_read_no_row_repeatedly(
    others: None, statistics: None, service: Service, database: Database
) -> None:
    fresh = service.session()
    await fresh.enter_tenant()
    lines = [message(n, content="x" * 2_000) for n in range(1, 2_001)]

    async def requests() -> AsyncIterator[archive_pb.ImportTranscriptRequest]:
        data = file_of(HEADER, *lines)
        for offset in range(0, len(data), 500_000):
            chunk = archive_pb.ImportChunk(offset=offset, data=data[offset : offset + 500_000])
            yield archive_pb.ImportTranscriptRequest(chunk=chunk)
        yield archive_pb.ImportTranscriptRequest(finish=archive_pb.ImportFinish())

    counted = Counted(database)
    async with (
        open_activity_recorder(counted) as activities,
        open_payload_uploader(counted, BlobStore(None), activities) as uploader,
        cpu_workers() as workers,
        open_import_threads(workers) as threads,
    ):
        key = Key(fresh.tenant_id, fresh.session_id)
        done = await import_chunks(
            Importer(counted, BlobStore(None), uploader, threads), key, None, requests()
        )
    await _remove(fresh)

    assert done.entry_count == 2_001
    assert counted.rows_read < done.entry_count
