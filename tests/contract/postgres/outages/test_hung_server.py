"""Statements leave a server that keeps its connections open and does not answer, and only such a
server.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh_core.dependency_watch import DependencyDown
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn, create_service_database
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import open_listener
from spawnmesh_postgres.server_probe import ServerSilent, StatementLeft

from tests.support.postgres.channels import add_channels
from tests.support.postgres.silent_server import Way, open_way
from tests.support.waiting import eventually

LOCK = "select pg_advisory_xact_lock(71)"

Statement = Callable[[Database], Awaitable[object]]


@pytest.fixture(scope="module")
async def server(watchdog: Watchdog) -> AsyncIterator[Postgres]:
    """Start a server for these tests alone, since they stop its processes."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-hung-") as folder:
        home = Path(folder)
        async with Postgres(home / "data", home / "postgres.log", watchdog, lambda _line: None) as server:
            yield server


@pytest.fixture
async def dsn(server: Postgres) -> ServiceDsn:
    made = await create_service_database(server.superuser_dsn, ["hung"])
    dsn = await add_channels(made["hung"], "hung")
    async with await psycopg.AsyncConnection.connect(dsn.owner) as owner:
        await owner.execute("create table if not exists notes (note_id text primary key)")
    return dsn


@pytest.fixture
async def database(dsn: ServiceDsn) -> AsyncIterator[Database]:
    async with open_database(dsn.app, name="hung", max_connections=2) as opened:
        await opened.connections.check()
        yield opened


@asynccontextmanager
async def hanging(server: Postgres) -> AsyncIterator[None]:
    server.process.pause()
    try:
        yield
    finally:
        server.process.resume()


async def in_transaction(database: Database) -> None:
    async with database.transaction("acme") as connection:
        await connection.execute("select 1")


async def in_transaction_of(database: Database) -> None:
    async with database.transaction_with_statements("acme", ["select 1"], {}):
        pass


async def in_pipeline(database: Database) -> None:
    async with database.pipelined("acme") as connection:
        await (await connection.execute("select 1")).fetchone()


async def in_call(database: Database) -> None:
    await database.call("acme", "select %(tenant_id)s", {})


async def in_notification(database: Database) -> None:
    await database.notify("news", ["x"])


@pytest.mark.parametrize(
    "statement", [in_transaction, in_transaction_of, in_pipeline, in_call, in_notification]
)
async def test_statement_without_a_deadline_leaves_a_hung_server(
    server: Postgres, database: Database, statement: Statement
) -> None:
    async with hanging(server):
        # More than there are connections, so that some wait for one.
        results = await asyncio.gather(*(statement(database) for _ in range(4)), return_exceptions=True)
        assert any(isinstance(result, StatementLeft) for result in results)
        for result in results:
            assert isinstance(result, ServerSilent)
            refusal = translate(result)
            assert refusal is not None
            assert refusal.reason is Reason.DEPENDENCY_UNAVAILABLE
            assert refusal.retry_after_seconds
        assert database.connections.in_use == 0
        with pytest.raises(DependencyDown):
            await database.connections.check()
    await eventually(lambda: is_answered(database, statement))


async def is_answered(database: Database, statement: Statement) -> bool:
    try:
        await statement(database)
    except psycopg.OperationalError as error:
        if translate(error) is None:
            raise
        return False
    return True


async def test_commit_that_was_sent_to_a_hung_server_can_be_repeated(
    server: Postgres, database: Database
) -> None:
    async def add_note(*, hangs: bool = False) -> None:
        async with database.transaction("acme") as connection:
            await connection.execute("insert into notes values ('a') on conflict do nothing")
            if hangs:
                server.process.pause()

    try:
        with pytest.raises(StatementLeft):
            await add_note(hangs=True)
    finally:
        server.process.resume()
    await eventually(lambda: is_answered(database, lambda _database: add_note()))
    async with database.transaction("acme") as connection:
        assert len(await (await connection.execute("select from notes")).fetchall()) == 1


async def test_pool_without_a_connection_refuses_while_the_server_hangs(
    server: Postgres, dsn: ServiceDsn
) -> None:
    async with hanging(server), open_database(dsn.app, name="hung", max_connections=2) as database:
        for _ in range(3):
            with pytest.raises(psycopg.OperationalError) as caught:
                await in_call(database)
            refusal = translate(caught.value)
            assert refusal is not None
            assert refusal.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_listener_leaves_a_silent_server_for_the_next_one(dsn: ServiceDsn) -> None:
    async with open_way(dsn.app) as first, open_way(dsn.app) as second:
        ports = f"{first.port},{second.port}"
        both = make_conninfo(first.dsn(dsn.app), host="127.0.0.1,127.0.0.1", port=ports)
        async with open_listener(both, name="ears", channels=("news",)) as listener:
            with listener.subscription("news") as heard:
                assert await heard.wait(60)
                first.fall_silent()
                assert await heard.wait(60), "it is connected again, and has its subscribers look"
                async with await psycopg.AsyncConnection.connect(dsn.app, autocommit=True) as other:
                    await other.execute("select pg_notify('news' || suffix, '') from _spawnmesh_channels")
                assert await heard.wait(60)
        first.open.set()


class Door:
    """A proxy to a server that forwards new connections. It ignores them while it is closed, and the
    next `to_ignore` ones.
    """

    def __init__(self, way: Way) -> None:
        self.ignored_count = self.forwarded_count = 0
        self.is_closed = False
        self.to_ignore = 0
        self._way = way

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_closed or self.to_ignore:
            self.to_ignore = max(self.to_ignore - 1, 0)
            self.ignored_count += 1
            await reader.read()
            writer.close()
        else:
            self.forwarded_count += 1
            await self._way.forward(reader, writer)


@pytest.fixture
async def door(dsn: ServiceDsn) -> AsyncIterator[tuple[Door, Database]]:
    """Open a pool through the door."""
    async with open_way(dsn.app) as way:
        door = Door(way)
        entry = await asyncio.start_server(door.enter, "127.0.0.1", 0)
        way.port = entry.sockets[0].getsockname()[1]
        async with entry, open_database(way.dsn(dsn.app), name="hung", max_connections=2) as database:
            await asyncio.gather(in_transaction(database), in_transaction(database))
            yield door, database
            door.is_closed = False


async def wait_for_lock(database: Database) -> None:
    async with database.transaction("acme") as connection:
        await connection.execute(LOCK)


@asynccontextmanager
async def lock_held(dsn: ServiceDsn) -> AsyncIterator[None]:
    async with await psycopg.AsyncConnection.connect(dsn.app) as other:
        await other.execute(LOCK)
        yield


async def test_statement_that_waits_for_a_lock_is_not_left(dsn: ServiceDsn) -> None:
    async with (
        open_way(dsn.app) as way,
        open_database(way.dsn(dsn.app), name="hung", max_connections=1) as database,
    ):
        await in_transaction(database)
        before = len(way.ends)
        async with lock_held(dsn):
            waiting = asyncio.create_task(wait_for_lock(database))
            await eventually(lambda: len(way.ends) >= before + 3)
        await waiting


async def test_one_question_without_an_answer_is_no_evidence(
    dsn: ServiceDsn, door: tuple[Door, Database]
) -> None:
    entry, database = door
    async with lock_held(dsn):
        waiting = asyncio.create_task(wait_for_lock(database))
        for round_number in (1, 2):
            forwarded = entry.forwarded_count
            entry.to_ignore = 1
            await eventually(lambda number=round_number: entry.ignored_count >= number)
            await eventually(lambda before=forwarded: entry.forwarded_count > before)
    await waiting


async def test_answers_to_other_statements_are_evidence_that_the_server_lives(
    dsn: ServiceDsn, door: tuple[Door, Database]
) -> None:
    """New connections get no answer, for example because the machine is overloaded."""
    entry, database = door

    async def use_other_connection() -> None:
        while True:
            await in_transaction(database)
            await asyncio.sleep(0)

    async with lock_held(dsn):
        waiting = asyncio.create_task(wait_for_lock(database))
        entry.is_closed = True
        using = asyncio.create_task(use_other_connection())
        await eventually(lambda: entry.ignored_count >= 6)
        using.cancel()
        entry.is_closed = False
    await waiting
