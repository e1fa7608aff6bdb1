"""Statements read what they give, also in a long transcript of a tenant of which the planner was told nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.types.json import Jsonb
from spawnmesh.transcript.v1 import archive_service_pb2 as archive_pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection, Database, open_database
from spawnmesh_postgres.statements import load_statements
from spawnmesh_transcript import import_store, payload_store, store, summary_store, tier_store
from spawnmesh_transcript.activities import open_activities
from spawnmesh_transcript.domain.entries import EntryKind, Label, NewEntry
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.import_threads import open_import_threads
from spawnmesh_transcript.importing import import_transcript
from spawnmesh_transcript.payloads import open_payloads
from spawnmesh_transcript.store import Append, Key

from tests.contract.transcript_files import HEADER, file_of, message
from tests.contract.transcript_fixtures import Service, Session, assistant, service, superuser

__all__ = ["service", "superuser"]

Superuser = AsyncConnection[tuple[Any, ...]]

ROWS = 2_400
TABLES = ("transcripts", "entries", "stubs", "payloads", "summaries", "activities", "appends")
_GROWING = ("entries", "stubs", "payloads", "summaries", "activities", "appends")
"""What a transcript has many of. The rest has one row for a tenant or a transcript, and is read whole, rightly, where it is a few pages."""

STATEMENTS = load_statements("spawnmesh_transcript")

_KEY = "%(tenant_id)s, %(session_id)s"
_FILL = (
    f"""
    insert into entries (tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label,
        target_seq, writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body)
    select {_KEY}, n, 'ent_' || n, '', (array['MESSAGE', 'MESSAGE', 'LABEL'])[n %% 3 + 1],
        (array['USER', 'ASSISTANT', ''])[n %% 3 + 1], 10, '{{}}', '', false, (array['', '', 'SUPERSEDED'])[n %% 3 + 1],
        case when n %% 3 = 2 then n - 1 end, '', 0, '', '', now(), 'hash', convert_to(repeat('x', 50), 'UTF8')
    from generate_series(2, %(rows)s) n
    """,
    f"insert into stubs (tenant_id, session_id, seq, token_count, body) select {_KEY}, n, 5, 'x' from generate_series(2, %(rows)s) n",
    """
    insert into payloads (tenant_id, blob_id, session_id, seq, block_index, tool_name, about, mime_type, size_bytes, line_count, sha256)
    select %(tenant_id)s, 'blb_' || n, %(session_id)s, n, 0, '', '', '', 1, 1, '' from generate_series(2, %(rows)s) n
    """,
    f"""
    insert into summaries (tenant_id, session_id, seq, entry_id, first_source_seq, last_source_seq, source_entry_count, source_token_count,
        covered_turn_count, covered_token_count, token_count, method, model, run_id, is_told)
    select {_KEY}, n, 'ent_' || n, 1, n - 9, 1, 1, 1, 1, 5, 'NORMAL', '', '', n < %(rows)s - 300
    from generate_series(10, %(rows)s - 10, 10) n
    """,
    """
    insert into activities (tenant_id, position, session_id, create_time, body)
    select %(tenant_id)s, n, case when n %% 10 = 0 then %(session_id)s else 'ses_of_others' end, now() - interval '8 days', ''
    from generate_series(1, %(rows)s) n
    """,
    f"""
    insert into appends (tenant_id, session_id, idempotency_key, content_hash, first_seq, last_seq, writer_run_id, writer_epoch)
    select {_KEY}, 'key-' || n, 'x', n, n + 1, '', 0 from generate_series(2, %(rows)s - 1) n
    """,
    """
    insert into transcripts (tenant_id, session_id, incarnation, forked_from_session_id, parent_session_id)
    select %(tenant_id)s, 'ses_' || n, '', '', case when n > 9 then 'ses_of_others' when n > 1 then %(session_id)s else '' end
    from generate_series(1, %(rows)s) n
    """,
    """
    insert into imports (tenant_id, session_id, update_time)
    select %(tenant_id)s, 'ses_' || n, now() - interval '2 days' from generate_series(1, 50) n
    """,
    "update transcripts set seq = %(rows)s where tenant_id = %(tenant_id)s and session_id = %(session_id)s",
)


_OTHERS = (
    """
    insert into entries (tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label,
        target_seq, writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body)
    select 'other-' || t, 'ses_' || t, n, 'ent_' || t || n, '', 'LABEL', '', 10, '{}', '', false, 'SUPERSEDED', 1, '', 0, '', '', now(), '', ''
    from generate_series(1, 300) t, generate_series(2, 11) n
    """,
    """
    insert into payloads (tenant_id, blob_id, session_id, seq, block_index, tool_name, about, mime_type, size_bytes, line_count, sha256)
    select 'other-' || t, 'blb_' || t || n, 'ses_' || t, n, 0, '', '', '', 1, 1, '' from generate_series(1, 300) t, generate_series(2, 11) n
    """,
    """
    insert into activities (tenant_id, position, session_id, create_time, body)
    select 'other-' || t, n, 'ses_' || t, now(), '' from generate_series(1, 300) t, generate_series(2, 11) n
    """,
)


@pytest.fixture(params=["indexes as they were made", "primary keys made anew"])
async def statistics(service: Service, superuser: Superuser, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Nothing is told to the planner any more. Of indexes that cost the same it takes one by its age: no statement may live by that."""
    for table in TABLES:
        await superuser.execute(f"alter table {table} set (autovacuum_enabled = false)")
        await superuser.execute(f"analyze {table}")
        if request.param == "primary keys made anew":
            await superuser.execute(f"reindex index concurrently {table}_pkey")
    yield
    for table in TABLES:
        await superuser.execute(f"alter table {table} reset (autovacuum_enabled)")


@pytest.fixture(params=["few others", "many others"])
async def others(service: Service, superuser: Superuser, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Tenants that the planner is told of: all of them by name, or how many rows one has on average."""
    short = service.session()
    await short.create()
    await short.append([assistant("word")], claim=await short.acquire(1))
    for statement in _OTHERS if request.param == "many others" else ():
        await superuser.execute(statement)
    yield
    for table in ("entries", "payloads", "activities"):
        await superuser.execute(f"delete from {table} where tenant_id like 'other-%'")
    await _remove(short)


@pytest.fixture
async def long(others: None, statistics: None, service: Service, superuser: Superuser) -> AsyncIterator[Key]:
    """A long transcript of another tenant."""
    grown = service.session()
    await grown.create()
    await grown.sibling().create()
    parameters = {"tenant_id": grown.tenant_id, "session_id": grown.session_id, "rows": ROWS}
    for statement in _FILL:
        await superuser.execute(statement, parameters)
    yield Key(grown.tenant_id, grown.session_id)
    await _remove(grown)


async def _remove(session: Session) -> None:
    while not (await session.purge_tenant()).done:
        pass


@pytest.fixture
async def database(service: Service) -> AsyncIterator[Database]:
    async with open_database(service.dsn.app, name="reading", max_connections=1) as database:
        yield database


Work = Callable[[Connection, Key], Awaitable[object]]


def entry_ids(first: int, last: int) -> list[str]:
    return [f"ent_{n}" for n in range(first, last)]


def blob_ids(first: int, last: int) -> list[str]:
    return [f"blb_{n}" for n in range(first, last)]


def stated(name: str, **parameters: Any) -> Work:
    """The statement by itself."""

    async def work(connection: Connection, key: Key) -> None:
        asked = {"tenant_id": key.tenant_id, "session_id": key.session_id, **parameters}
        await connection.execute(STATEMENTS[name], asked)

    return work


def append_of(key: Key, target_entry_id: str, idempotency_key: str) -> Append:
    label = NewEntry(
        kind=EntryKind.LABEL,
        body=b"x",
        entry_id=new_id(IdKind.ENTRY),
        label=Label.SUPERSEDED,
        target_entry_id=target_entry_id,
    )
    return Append(key, [label], idempotency_key, b"x", Writer(service="session"), 0)


def appended(outcome: str, target_entry_id: str, idempotency_key: str = "new") -> Work:
    async def work(connection: Connection, key: Key) -> None:
        call = store.call_parameters(append_of(key, target_entry_id, idempotency_key), 1)
        parameters = {"tenant_id": key.tenant_id, "calls": Jsonb([call]), "bodies": b"x", "waits": True}
        row = await (await connection.execute(STATEMENTS["append_entries"], parameters)).fetchone()
        assert row is not None
        assert row["outcome"] == outcome

    return work


def plainly(number: int) -> Work:
    """So many appends that refer to nothing, to the long transcript and to the short ones beside it."""

    async def work(connection: Connection, key: Key) -> None:
        entry = store.described(NewEntry(kind=EntryKind.CUSTOM, body=b"x"))
        keys = [key, *(Key(key.tenant_id, f"ses_{n}") for n in range(ROWS - number + 2, ROWS + 1))]
        calls = [
            {**store.fence_parameters(append_of(one, "", "new"), n), **entry, "entry_id": new_id(IdKind.ENTRY)}
            for n, one in enumerate(keys, 1)
        ]
        parameters = {"tenant_id": key.tenant_id, "calls": Jsonb(calls), "bodies": b"x" * number}
        rows = await (await connection.execute(STATEMENTS["append_plain"], parameters)).fetchall()
        assert sorted(row["session_id"] for row in rows) == sorted(one.session_id for one in keys)

    return work


async def told(connection: Connection, key: Key) -> None:
    untold = await summary_store.untold_summaries(connection, key.tenant_id, row_count=16)
    assert len(untold) == 16
    await summary_store.mark_told(connection, key.tenant_id, untold)
    assert len(await summary_store.untold_summaries(connection, key.tenant_id, row_count=50)) == 14


async def stored(connection: Connection, key: Key) -> None:
    usable = await payload_store.mark_stored(connection, key, blob_ids(ROWS - 100, ROWS - 68))
    assert sorted(stub.seq for stub in usable) == [*range(ROWS - 100, ROWS - 68)]


async def given_up(connection: Connection, key: Key) -> None:
    await payload_store.delete_payloads(connection, key, blob_ids(ROWS - 100, ROWS - 68))


async def cooled(connection: Connection, key: Key) -> None:
    """Payloads come to where they are alone, and back."""
    seqs = [*range(ROWS - 100, ROWS - 84)]
    entries = [{"seq": seq, "whole_bytes": 50, "blob_ids": blob_ids(seq, seq + 1)} for seq in seqs]
    asked = {"tenant_id": key.tenant_id, "session_id": key.session_id, "seqs": seqs}
    await payload_store.mark_stored(connection, key, blob_ids(ROWS - 100, ROWS - 84))
    rows = await connection.execute(
        STATEMENTS["cool_entries"], {**asked, "entries": Jsonb(entries), "bodies": [b"short"] * 16}
    )
    assert [row["cooled_seq"] async for row in rows] == seqs
    rows = await connection.execute(STATEMENTS["warm_entries"], {**asked, "bodies": [b"x" * 50] * 16})
    assert [row["warmed_seq"] async for row in rows] == seqs


async def named(connection: Connection, key: Key) -> None:
    """An entry has its payloads already."""
    asked = {
        "tenant_id": key.tenant_id,
        "session_id": key.session_id,
        "seqs": [],
        "token_counts": [],
        "token_vocabularies": [],
        "stub_bodies": [],
        "files": Jsonb([{"seq": seq} for seq in range(ROWS - 100, ROWS - 84)]),
    }
    rows = await connection.execute(STATEMENTS["keep_payloads"], asked)
    assert await rows.fetchall() == []


async def kept(connection: Connection, key: Key) -> None:
    found = await summary_store.read_kept(connection, key, after_seq=ROWS - 3)
    assert found.first_entry_id == f"ent_{ROWS}"


WORKS: dict[str, tuple[Work, int]] = {
    "known ids": (
        lambda connection, key: import_store.known_entry_ids(connection, key, entry_ids(ROWS - 300, ROWS - 200)),
        100,
    ),
    "an import that is held": (stated("hold_import", incarnation=""), 3),
    "imports that nobody goes on with": (
        lambda connection, key: import_store.stale(connection, key.tenant_id, age_seconds=60),
        110,
    ),
    "the end of a branch": (stated("entries_off_branch", leaf_entry_id=f"ent_{ROWS - 1}"), ROWS + 10),
    "an append": (plainly(1), 3),
    "appends that share a transaction": (plainly(16), 48),
    "a label": (appended("APPENDED", f"ent_{ROWS - 3}"), 10),
    "a label on nothing": (appended("TARGET_NOT_FOUND", new_id(IdKind.ENTRY)), 10),
    "a repeated append": (appended("REPLAYED", f"ent_{ROWS - 3}", f"key-{ROWS - 9}"), 20),
    "the newest message of a user": (store.newest_user_turn, 10),
    "superseded messages": (
        lambda connection, key: summary_store.count_superseded(connection, key, after_seq=ROWS - 300),
        300,
    ),
    "what a compaction keeps": (kept, 50),
    "messages that may be summarized": (stated("scan_sources", after_seq=ROWS - 300, row_count=50), 250),
    "messages of a summary": (
        stated(
            "list_sources",
            after_seq=ROWS - 300,
            last_source_seq=ROWS - 10,
            summary_seq=ROWS,
            page_size=20,
            max_bytes=10_000,
        ),
        250,
    ),
    "news of summaries": (told, 250),
    "counts": (stated("scan_counts", after_seq=ROWS - 200, row_count=64), 150),
    "stored payloads": (stored, 400),
    "payloads that are cooled and warmed": (cooled, 800),
    "payloads that have names": (named, 100),
    "files of entries": (
        lambda connection, key: payload_store.files_of_entries(connection, key, range(ROWS - 100, ROWS - 68)),
        64,
    ),
    "payloads of entries": (
        lambda connection, key: tier_store.payloads_of_entries(connection, key, range(ROWS - 100, ROWS - 68)),
        64,
    ),
    "references": (stated("stub_bodies", seqs=[*range(ROWS - 100, ROWS - 68)]), 64),
    "released payloads": (given_up, 100),
    "a file": (
        lambda connection, key: payload_store.read_payload(connection, key.tenant_id, blob_ids(ROWS - 5, ROWS - 4)[0]),
        10,
    ),
    "activities of a session": (stated("list_session_activities", after_position=30, row_count=100), 100),
    "a family": (stated("family_of"), 30),
    "an ancestor": (stated("is_descendant", ancestor_id="ses_of_others"), 10),
    "transcripts to cool": (
        lambda connection, key: tier_store.transcripts_to_cool(
            connection, key.tenant_id, after_session_id="", row_count=100
        ),
        ROWS + 20,
    ),
    **{
        name: (stated(name, row_count=200, days=7), 600)
        for name in (
            "delete_entries",
            "purge_entries",
            "delete_payload_rows",
            "purge_payloads",
            "delete_activities",
            "forget_activities",
            "purge_activities",
        )
    },
}


async def test_statements_read_no_more_rows_than_they_are_for(long: Key, database: Database) -> None:
    read = {name: await _rows_read(database, long, work) for name, (work, _) in WORKS.items()}
    assert {name: rows for name, rows in read.items() if rows > WORKS[name][1]} == {}


async def test_imports_read_nothing_over_and_over(
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
        open_activities(counted) as activities,
        open_payloads(counted, None, activities) as payloads,
        open_import_threads() as threads,
    ):
        key = Key(fresh.tenant_id, fresh.session_id)
        done = await import_transcript(counted, payloads, threads, key, None, requests())
    await _remove(fresh)

    assert done.entry_count == 2_001
    assert counted.rows_read < done.entry_count


class Counted(Database):
    """Counts the rows of what grows that transactions look at."""

    def __init__(self, database: Database) -> None:
        super().__init__(database._pool, database._metrics)
        self.rows_read = 0

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Connection]:
        async with super().transaction(tenant_id) as connection:
            before = await _looked_at(connection, _GROWING)
            yield connection
            self.rows_read += await _looked_at(connection, _GROWING) - before


async def _rows_read(database: Database, key: Key, work: Work) -> int:
    """Rows of tables that it looked at; nothing of what it does is kept."""
    try:
        async with database.transaction(key.tenant_id) as connection:
            await connection.execute(STATEMENTS["keep_to_indexes"])
            before = await _looked_at(connection)
            await work(connection, key)
            raise _RolledBack(await _looked_at(connection) - before)
    except _RolledBack as done:
        return done.rows


async def _looked_at(connection: Connection, tables: Sequence[str] | None = None) -> int:
    """Of these tables, or of all."""
    statement = """
        select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint as rows from pg_stat_xact_user_tables
        where %(tables)s::text[] is null or relname = any(%(tables)s)
    """
    row = await (await connection.execute(statement, {"tables": tables and list(tables)})).fetchone()
    return int(row["rows"] or 0) if row else 0


class _RolledBack(Exception):
    """Ends a transaction."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
