"""A write is seen only when the synchronous standby has it, also if its caller gave up before."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import create_service_database
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_postgres.database import Database, open_database

from tests.support.postgres.standby import rows, start_standby
from tests.support.waiting import eventually

TABLE = """
create table notes (note_id text primary key);
create function add_note(tenant text, note text) returns text language sql
    as $$ insert into notes values (note) returning note_id $$;
"""
WAITING = "select 1 from pg_stat_activity where wait_event = 'SyncRep'"


@dataclass
class Pair:
    """A primary whose commits wait for the standby, and a pool to the primary."""

    primary: Postgres
    standby: Postgres
    database: Database


@pytest.fixture(scope="module")
async def pair(watchdog: Watchdog) -> AsyncIterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="spawnmesh-pair-") as folder:
        home = Path(folder)
        async with Postgres(home / "data", home / "postgres.log", watchdog, lambda _line: None) as primary:
            dsn = (await create_service_database(primary.superuser_dsn, ["notes"]))["notes"]
            with psycopg.connect(dsn.owner) as owner:
                owner.execute(TABLE.encode())
            standby = await start_standby(primary, home / "standby", watchdog)
            try:
                async with open_database(dsn.app, name="pair", max_connections=2) as database:
                    yield Pair(primary, standby, database)
            finally:
                await standby.stop()


async def in_transaction(database: Database, note: str) -> None:
    async with database.transaction("acme") as connection:
        await connection.execute("insert into notes values (%s)", (note,))


async def in_pipeline(database: Database, note: str) -> None:
    async with database.pipelined("acme") as connection:
        await connection.execute("insert into notes values (%s)", (note,))


async def by_call(database: Database, note: str) -> None:
    await database.call("acme", "select add_note(%(tenant_id)s, %(note)s)", {"note": note})


async def seen(database: Database, note: str) -> bool:
    async with database.transaction("acme") as connection:
        found = await connection.execute("select from notes where note_id = %s", (note,))
        return found.rowcount > 0


@pytest.mark.parametrize("write", [in_transaction, in_pipeline, by_call])
async def test_write_that_waits_for_the_standby_is_not_seen_when_its_caller_gives_up(
    pair: Pair, write: Callable[[Database, str], Awaitable[None]]
) -> None:
    note = write.__name__
    pair.standby.process.pause()
    try:
        task = asyncio.ensure_future(write(pair.database, note))
        await eventually(lambda: rows(pair.primary, WAITING))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await seen(pair.database, note)
        assert pair.database.connections.in_use == 0
    finally:
        pair.standby.process.resume()
    await eventually(lambda: seen(pair.database, note))
