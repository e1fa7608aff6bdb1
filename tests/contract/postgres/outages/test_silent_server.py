"""A caller that gives up on a silent database is released soon, and its connection is
not reused.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import psycopg
import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import create_service_database
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import open_listener
from spawnmesh_postgres.server_probe import ServerSilent

from tests.support.postgres.channels import add_channels
from tests.support.postgres.silent_server import Way, open_way
from tests.support.postgres.standby import execute
from tests.support.waiting import eventually

Work = Callable[[Database, asyncio.Event], Coroutine[Any, Any, None]]


@pytest.fixture
async def dsn(postgres: Postgres) -> str:
    made = await create_service_database(postgres.superuser_dsn, ["silence"])
    return (await add_channels(made["silence"], "silence")).app


@pytest.fixture
async def way(dsn: str) -> AsyncIterator[Way]:
    async with open_way(dsn) as way:
        yield way
        way.open.set()  # So that everybody can go.


@pytest.fixture
async def database(way: Way, dsn: str) -> AsyncIterator[Database]:
    async with open_database(way.dsn(dsn), name="silence", max_connections=2) as opened:
        await opened.connections.check()
        yield opened


async def in_transaction(database: Database, at_work: asyncio.Event) -> None:
    async with database.transaction("acme") as connection:
        at_work.set()
        await connection.execute("select pg_sleep(60)")


async def in_transaction_of(database: Database, at_work: asyncio.Event) -> None:
    at_work.set()
    async with database.transaction_with_statements("acme", ["select pg_sleep(60)"], {}):
        pytest.fail("begun all the same")


async def in_pipeline(database: Database, at_work: asyncio.Event) -> None:
    async with database.pipelined("acme") as connection:
        at_work.set()
        await (await connection.execute("select pg_sleep(60)")).fetchone()


async def in_call(database: Database, at_work: asyncio.Event) -> None:
    at_work.set()
    await database.call("acme", "select pg_sleep(60)", {})


async def between_statements(database: Database, at_work: asyncio.Event) -> None:
    async with database.transaction("acme") as connection:
        await connection.execute("select 1")
        at_work.set()
        await asyncio.Event().wait()


async def between_statements_of_pipeline(database: Database, at_work: asyncio.Event) -> None:
    async with database.pipelined("acme") as connection:
        await (await connection.execute("select 1")).fetchone()
        await connection.execute("select 2")
        at_work.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    "work",
    [
        in_transaction,
        in_transaction_of,
        in_pipeline,
        in_call,
        between_statements,
        between_statements_of_pipeline,
    ],
)
async def test_who_gives_up_on_a_silent_server_is_let_go_soon(
    database: Database, way: Way, work: Work
) -> None:
    at_work = asyncio.Event()
    task = asyncio.create_task(work(database, at_work))
    await at_work.wait()
    await asyncio.sleep(0)
    way.fall_silent()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await task

    assert database.connections.in_use == 0
    way.open.set()
    assert await eventually(lambda: answers_at_last(database)) == [{"one": 1}] * 4


async def answers_at_last(database: Database) -> list[dict[str, int]]:
    """Return nothing while the server still counts as silent."""
    try:
        return await answers(database)
    except ServerSilent:
        return []


async def answers(database: Database) -> list[dict[str, int]]:
    """Return the answers of more transactions than there are connections: a broken
    connection would show.
    """
    async with asyncio.timeout(60):
        got = []
        for _ in range(4):
            async with database.transaction("acme") as connection:
                got += await (await connection.execute("select 1 as one")).fetchall()
        return got


async def test_error_in_a_block_is_raised_also_if_the_server_is_silent(database: Database, way: Way) -> None:
    async def fail() -> None:
        async with database.transaction("acme") as connection:
            await connection.execute("select 1")
            way.fall_silent()
            raise KeyError

    with pytest.raises(KeyError):
        await fail()

    assert database.connections.in_use == 0


async def test_block_whose_client_is_silent_is_ended_by_the_server(database: Database, dsn: str) -> None:
    """Between two statements of a pipeline the server considers the client active: only
    the transaction timeout ends it and releases its locks.
    """

    async def fall_silent() -> None:
        async with database.pipelined("acme", timeout_seconds=0.3) as connection:
            await (await connection.execute("select pg_advisory_xact_lock(59)")).fetchone()
            async with (
                await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other,
                asyncio.timeout(60),
            ):
                await other.execute("select pg_advisory_lock(59)")

    with pytest.raises(psycopg.Error) as caught:
        await fall_silent()
    refusal = translate(caught.value)
    assert refusal is not None
    assert refusal.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert await answers(database) == [{"one": 1}] * 4


async def test_cancelled_statement_is_stopped_where_the_server_answers(database: Database, dsn: str) -> None:
    pids: list[int] = []

    async def hang() -> None:
        async with database.transaction("acme") as connection:
            pids.append(connection.info.backend_pid)
            await connection.execute("select pg_sleep(60)")

    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await hang()

    assert await answers(database) == [{"one": 1}] * 4
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        statement = "select pid from pg_stat_activity where pid = any(%s) and state = 'idle'"
        kept = [pid for (pid,) in await (await other.execute(statement, (pids,))).fetchall()]
    assert sorted(kept) == sorted(set(pids))  # Stopped, and not thrown away.


async def test_statement_that_commits_by_itself_ends_with_its_connection(
    postgres: Postgres, dsn: str
) -> None:
    """It is not cancelled: it might have begun to commit. The server sees that the client left."""
    # Roles that a person has made lack it.
    execute(postgres, "alter role silence reset client_connection_check_interval")
    running = "select 1 from pg_stat_activity where query like 'select pg_sleep(601)%' and state = 'active'"
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other,
        open_database(dsn, name="silence", max_connections=1, statement_timeout_seconds=600) as patient,
    ):

        async def is_running() -> bool:
            return await (await other.execute(running)).fetchone() is not None

        async def has_ended() -> bool:
            return not await is_running()

        statement = "select pg_sleep(601)"
        task = asyncio.create_task(patient.call("acme", statement, {}))
        await eventually(is_running)
        task.cancel()
        await eventually(has_ended)


async def test_listener_of_a_silent_server_is_let_go_soon(way: Way, dsn: str) -> None:
    way.fall_silent()
    async with open_listener(way.dsn(dsn), name="silence", channels=("a",)):
        pass
    way.open.set()
    async with asyncio.timeout(60):
        async with open_listener(way.dsn(dsn), name="silence", channels=("a",)) as listener:
            with listener.subscription("a") as subscription:
                assert await subscription.wait(60)
            way.fall_silent()
