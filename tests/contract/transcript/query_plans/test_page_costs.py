"""Statements that page through a long transcript cost what they touch, also with statistics of
short transcripts."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.tenant_tables import deletion_statement, page_bounds, page_statement
from spawnmesh_transcript.store.deletions import PAGED_TABLES
from spawnmesh_transcript.store.tenants import TENANT_TABLES

from tests.support.transcript.bodies import assistant
from tests.support.transcript.fixtures import Service, Session
from tests.support.transcript.statements import all_statements
from tests.support.transcript.tables import Superuser, pages_touched

ENTRIES = 6_000
PAGE = 500
BATCH = 64
STATEMENTS = all_statements()
_KEY = "%(tenant_id)s, %(session_id)s"
_FILL = (
    f"""
    insert into entries (tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count,
        calls, answers, is_synthetic, label,
        writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body)
    select {_KEY}, n, 'ent_' || md5(n::text), 'ent_' || md5((n - 1)::text), 'MESSAGE', 'ASSISTANT', 10,
        '{{}}', '', false, '', '', 0, '', '',
        now(), '', convert_to(repeat('x', 100), 'UTF8')
    from generate_series(2, %(count)s) n
    """,
    f"""
    insert into stubs (tenant_id, session_id, seq, token_count, body)
    select {_KEY}, n, 5, 'x' from generate_series(2, %(count)s) n
    """,
    """
    insert into payloads (tenant_id, blob_id, session_id, seq, block_index, tool_name, about, mime_type,
        size_bytes, line_count, sha256)
    select %(tenant_id)s, 'blb_' || md5(n::text), %(session_id)s, n, 0, '', '', '', 1, 1,
        '' from generate_series(2, %(count)s) n
    """,
    f"""
    insert into search_pieces (tenant_id, session_id, seq, piece, words)
    select {_KEY}, n, 0,
        (case when n %% 2 = 0 then 'often' else 'else' end)::tsvector from generate_series(2, %(count)s) n
    """,
    """
    insert into activities (tenant_id, position, session_id, create_time, body)
    select %(tenant_id)s, n, %(session_id)s, now() - interval '8 days',
        '' from generate_series(1, %(count)s) n
    """,
)


async def _fill(superuser: Superuser, session: Session, count: int) -> None:
    """Fill the transcript up to the seq `count`."""
    parameters = {"tenant_id": session.tenant_id, "session_id": session.session_id, "count": count}
    for statement in _FILL:
        await superuser.execute(statement, parameters)


@pytest.fixture
async def long(service: Service, superuser: Superuser) -> AsyncIterator[Session]:
    """A long transcript of a tenant without planner statistics."""
    for _ in range(3):
        short = service.session()
        await short.create()
        claim = await short.acquire(1)
        await short.append([assistant("word")], claim=claim)
    await superuser.execute("analyze")
    grown = service.session()
    await grown.create()
    await _fill(superuser, grown, ENTRIES)
    yield grown
    while not (await grown.purge_tenant()).done:
        pass


@pytest.fixture
async def database(service: Service) -> AsyncIterator[Database]:
    async with open_database(service.dsn.app, name="cost", max_connections=1) as database:
        yield database


async def test_pages_of_rows_are_deleted_at_the_cost_of_a_page(long: Session, database: Database) -> None:
    statements = [f"delete_{table}" for table in (*PAGED_TABLES, "payload_rows")]
    statements.append("forget_activities")
    touched = {}
    for name in statements:
        key = {"tenant_id": long.tenant_id, "session_id": long.session_id, "row_count": PAGE, "days": 7}
        touched[name] = await _touched(database, name, key)
    async with database.transaction(long.tenant_id) as connection:
        keys = await TENANT_TABLES.read_keys(connection)
        for table in TENANT_TABLES.rows:
            columns, page = keys[table][1:], {"tenant_id": long.tenant_id, "limit": PAGE}
            if not columns:
                continue  # A table with one row for each tenant.
            find = page_statement(table, columns).as_string(connection)
            touched[table] = await pages_touched(connection, find, page)
            if found := await (await connection.execute(find.encode(), page)).fetchall():
                delete = deletion_statement(table, columns).as_string(connection)
                bounds = page_bounds(long.tenant_id, columns, found)
                touched[table] += await pages_touched(connection, delete, bounds)
    assert max(touched.values()) < 3 * ENTRIES, touched


async def test_a_batch_is_recounted_at_the_cost_of_a_batch(
    long: Session, service: Service, database: Database, superuser: Superuser
) -> None:
    """A long transcript needs no more pages than a short one, except for a deeper index."""
    short = service.session()
    await short.create()
    await _fill(superuser, short, BATCH + 1)
    in_long = await _recount(database, long, ENTRIES)
    in_short = await _recount(database, short, BATCH + 1)
    touched = [await _touched(database, "recount_entries", parameters) for parameters in (in_long, in_short)]
    assert touched[0] < 2 * touched[1], touched


async def _recount(database: Database, session: Session, last_seq: int) -> dict[str, Any]:
    """Return the parameters that recount the newest entries."""
    async with database.transaction(session.tenant_id) as connection:
        row = await (await connection.execute("select incarnation from transcripts")).fetchone()
    assert row is not None
    return {
        "tenant_id": session.tenant_id,
        "session_id": session.session_id,
        "incarnation": row["incarnation"],
        "vocabulary": "cl100k_base",
        "seqs": [*range(last_seq - BATCH + 1, last_seq + 1)],
        "token_counts": [9] * BATCH,
        "stub_token_counts": [4] * BATCH,
        "thinking_token_counts": [4] * BATCH,
    }


async def test_messages_off_the_branch_are_found_at_the_cost_of_the_branch(
    long: Session, database: Database
) -> None:
    asked = {"tenant_id": long.tenant_id, "session_id": long.session_id, "leaf_entry_id": ""}
    async with database.transaction(long.tenant_id) as connection:
        row = await (
            await connection.execute("select entry_id from entries where seq = %s", (ENTRIES,))
        ).fetchone()
    assert row is not None
    asked["leaf_entry_id"] = row["entry_id"]
    assert await _touched(database, "list_messages_off_branch", asked) < 10 * ENTRIES


async def test_words_are_searched_at_the_cost_of_the_entries_with_the_first_word(
    long: Session, database: Database
) -> None:
    anywhere = {
        "after_seq": 0,
        "before_seq": ENTRIES,
        "from_time": None,
        "before_time": None,
        "with_superseded": False,
    }
    asked = {
        "kinds": None,
        "roles": None,
        "first": "often",
        "wanted": ["never"],
        "excluded": [],
        "limit": 20,
        "max_bytes": 10**9,
    }
    key = {"tenant_id": long.tenant_id, "session_id": long.session_id}
    touched = await _touched(database, "search_by_words", {**key, **anywhere, **asked})
    assert touched < 20 * ENTRIES


async def _touched(database: Database, name: str, parameters: dict[str, Any]) -> int:
    """Return the buffer pages that the statement touches, and roll it back."""
    try:
        async with database.transaction(parameters["tenant_id"]) as connection:
            raise _RolledBack(await pages_touched(connection, STATEMENTS[name], parameters))
    except _RolledBack as done:
        return done.touched


class _RolledBack(Exception):
    """Rolls the transaction back."""

    def __init__(self, touched: int) -> None:
        self.touched = touched
