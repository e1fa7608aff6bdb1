"""A server that vanishes without closing a connection is left for the next one of the URL."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import create_service_database
from spawnmesh_postgres.connection import with_timeouts
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import open_listener

from tests.support.postgres.channels import add_channels
from tests.support.postgres.silent_server import Way, open_way
from tests.support.waiting import eventually

CONNECTIONS = 6


@pytest.fixture
async def ways(postgres: Postgres) -> AsyncIterator[tuple[Way, Way]]:
    """Open two ways to one server: as if the second were the promoted standby of the first."""
    async with open_way(postgres.superuser_dsn) as first, open_way(postgres.superuser_dsn) as second:
        yield first, second


@pytest.fixture
async def dsn(postgres: Postgres, ways: tuple[Way, Way]) -> str:
    made = await create_service_database(postgres.superuser_dsn, ["vanishing"])
    await add_channels(made["vanishing"], "vanishing")
    ports = ",".join(str(way.port) for way in ways)
    hosts = f"host=127.0.0.1,127.0.0.1 port={ports} sslmode=disable gssencmode=disable"
    return f"{hosts} user=vanishing dbname=spawnmesh target_session_attrs=read-write"


async def use(database: Database) -> None:
    """Use all connections of the pool at the same time."""

    async def use_one(all_in_use: asyncio.Barrier) -> None:
        async with database.transaction("acme") as connection:
            await connection.execute("select 1")
            await all_in_use.wait()

    async with asyncio.TaskGroup() as uses:
        barrier = asyncio.Barrier(CONNECTIONS)
        for _ in range(CONNECTIONS):
            uses.create_task(use_one(barrier))


async def is_used(database: Database) -> bool:
    try:
        await use(database)
    except ExceptionGroup as refused:
        if any(translate(error) is None for error in refused.exceptions):
            raise
        return False
    return True


async def sleep_on_server(database: Database) -> None:
    async with database.transaction("acme") as connection:
        await connection.execute("select pg_sleep(600)")


async def test_every_kind_of_connection_leaves_a_vanished_server(dsn: str, ways: tuple[Way, Way]) -> None:
    async with AsyncExitStack() as exits:
        database = await exits.enter_async_context(
            open_database(dsn, name="vanishing", max_connections=CONNECTIONS)
        )
        listener = await exits.enter_async_context(open_listener(dsn, name="ears", channels=("news",)))
        # Before the listener is connected, which wakes its subscribers.
        heard = exits.enter_context(listener.subscription("news"))
        assert await heard.wait(60)
        await use(database)
        waiting = asyncio.create_task(sleep_on_server(database))
        await eventually(lambda: database.connections.in_use == 1)

        await ways[0].vanish()

        # The statement that was sent and acknowledged before: nobody else ends it.
        with pytest.raises(psycopg.OperationalError) as caught:
            await waiting
        refusal = translate(caught.value)
        assert refusal is not None
        assert refusal.reason is Reason.DEPENDENCY_UNAVAILABLE
        await eventually(lambda: is_used(database))
        assert await heard.wait(60), "the listener is connected again, and has its subscribers look"
        await database.notify("news", ["x"])
        assert await heard.wait(60)


async def test_connections_are_made_to_the_host_that_answered_last(postgres: Postgres, dsn: str) -> None:
    """A host that does not answer costs each attempt a timeout, so it is not tried each time."""
    attempts = 0

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.transport.abort()

    bad = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    _, _, good = str(conninfo_to_dict(dsn)["port"]).partition(",")
    ports = f"{bad.sockets[0].getsockname()[1]},{good}"
    async with (
        bad,
        open_database(make_conninfo(dsn, port=ports), name="order", max_connections=CONNECTIONS) as database,
    ):
        await database.connections.check()
        before = attempts
        assert await is_used(database)
    assert before >= 1
    assert attempts <= before + 1, "only the pool's second initial connection may have begun before"


def test_timeouts_of_the_url_are_kept() -> None:
    given = "postgresql://app:pw@a:5432,b:5433/db?target_session_attrs=read-write&connect_timeout=9"
    made = conninfo_to_dict(with_timeouts(given))
    assert conninfo_to_dict(given).items() <= made.items()
    assert (made["host"], made["port"], made["tcp_user_timeout"]) == ("a,b", "5432,5433", "5000")
