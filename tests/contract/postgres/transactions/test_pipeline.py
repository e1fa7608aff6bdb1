"""A pipelined transaction sees one tenant, commits at its end, and leaves no broken connection."""

import asyncio

import psycopg
import pytest
from spawnmesh_postgres.database import Database

from tests.support.postgres.notes import notes


async def test_pipelined_transaction_sees_its_tenant_and_commits_at_the_end(database: Database) -> None:
    async with database.pipelined("acme") as connection:
        await connection.execute("insert into notes values ('acme', 'n')")
        seen = await connection.execute("select tenant_id from notes")
    assert await seen.fetchall() == [{"tenant_id": "acme"}]
    assert await notes(database, "acme") == ["acme"]
    assert await notes(database, "zeta") == []


async def fail_within(database: Database, failure: str) -> None:
    async with database.pipelined("acme") as connection:
        await connection.execute("insert into notes values ('acme', 'n')")
        if failure == "the block":
            raise LookupError
        refused = await connection.execute("insert into notes values ('zeta', 'n') returning note_id")
        if failure == "a fetch":
            await refused.fetchone()


async def test_pipelined_transaction_that_fails_leaves_nothing_and_its_connection_is_good(
    database: Database,
) -> None:
    for failure in ("a fetch", "the end"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await fail_within(database, failure)
    with pytest.raises(LookupError):
        await fail_within(database, "the block")
    assert await notes(database, "acme") == []
    assert database.connections.in_use == 0
    for _ in range(4):  # Whichever of the two connections comes.
        async with database.transaction("acme") as connection:
            row = await (await connection.execute("select count(*) as count from notes")).fetchone()
            assert row == {"count": 0}


async def test_pipelined_transaction_that_is_cancelled_leaves_nothing(database: Database) -> None:
    begun = asyncio.Event()

    async def slow() -> None:
        async with database.pipelined("acme") as connection:
            await connection.execute("insert into notes values ('acme', 'n')")
            begun.set()
            await (await connection.execute("select pg_sleep(30)")).fetchone()

    task = asyncio.create_task(slow())
    await begun.wait()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await notes(database, "acme") == []
    assert database.connections.in_use == 0


@pytest.mark.parametrize("scope", ["", "Acme", "acme'; reset role; --"])
async def test_pipelined_transaction_needs_a_well_formed_tenant(database: Database, scope: str) -> None:
    with pytest.raises(ValueError, match="well-formed tenant"):
        async with database.pipelined(scope):
            pass


async def test_pipelined_transaction_that_is_cut_off_gives_no_connection_back_that_may_be_in_its_pipeline(
    database: Database,
) -> None:
    used: asyncio.Queue[psycopg.AsyncConnection[psycopg.rows.DictRow]] = asyncio.Queue()

    async def work() -> None:
        async with database.pipelined("acme") as connection:
            used.put_nowait(connection)
            await (await connection.execute("select pg_sleep(30)")).fetchone()

    task = asyncio.create_task(work())
    connection = await used.get()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert connection.closed
    assert database.connections.in_use == 0
    assert await notes(database, "acme") == []
