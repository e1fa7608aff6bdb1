"""Calls use a real PgBouncer in transaction mode; listeners bypass it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.channels import create_channels
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.listener import open_listener
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database

from tests.support.pooling import needs_pgbouncer, open_pooler

pytestmark = needs_pgbouncer

TABLE = """
create table notes (tenant_id text not null, note_id text not null, primary key (tenant_id, note_id));
alter table notes enable row level security;
alter table notes force row level security;
create policy tenant on notes using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create function add_note(tenant text, note text) returns text language sql
    as $$ insert into notes values (tenant, note) returning note_id $$;
"""


@dataclass(frozen=True)
class Ways:
    """The DSNs of one schema: through the pooler, and direct."""

    pooled: str
    direct: str


@pytest.fixture(scope="module")
async def ways(postgres: Postgres) -> AsyncIterator[Ways]:
    database = f"pooled_{uuid4().hex[:12]}"
    app, owner = (
        make_conninfo(postgres.superuser_dsn, user=role, dbname=database) for role in ("notes", "notes_owner")
    )
    await asyncio.to_thread(prepare_database, postgres.superuser_dsn, {"notes": DatabaseUrls(app, owner)})
    with psycopg.connect(owner) as connection:
        connection.execute(TABLE)
        for statement in create_channels("notes"):
            connection.execute(statement)
    async with open_pooler(postgres, ("notes",), server_connections=2) as pooled:
        yield Ways(pooled(app), app)


@pytest.fixture
async def database(ways: Ways) -> AsyncIterator[Database]:
    async with open_database(
        ways.pooled, name="test", max_connections=8, pooled=True, wait_seconds=30
    ) as opened:
        yield opened


async def test_tenants_see_their_own_rows_whoever_shares_the_connection(database: Database) -> None:
    async def write_and_read(tenant: str) -> list[str]:
        async with database.transaction(tenant) as connection:
            await connection.execute("insert into notes values (%s, %s)", (tenant, "n"))
            rows = await (await connection.execute("select tenant_id from notes")).fetchall()
            return [row["tenant_id"] for row in rows]

    tenants = [f"tenant-{number}" for number in range(40)]
    seen = await asyncio.gather(*(write_and_read(tenant) for tenant in tenants))
    assert seen == [[tenant] for tenant in tenants]


async def test_statement_that_is_made_often_needs_nothing_that_was_left_on_a_connection(
    database: Database,
) -> None:
    statement = "select add_note(%(tenant_id)s, %(note_id)s) as note_id"

    async def call(number: int) -> str:
        rows = await database.call("often", statement, {"note_id": f"n{number}"})
        return str(rows[0]["note_id"])

    for start in range(0, 60, 20):
        some = range(start, start + 20)
        assert await asyncio.gather(*map(call, some)) == [f"n{number}" for number in some]


async def test_role_brings_the_timeouts_that_cannot_be_asked_for(database: Database) -> None:
    async with database.transaction("timed") as connection:
        row = await (await connection.execute("show statement_timeout")).fetchone()
    assert row == {"statement_timeout": "30s"}


async def test_pool_that_asks_for_them_is_not_let_in(ways: Ways) -> None:
    async with open_database(ways.pooled, name="test", max_connections=1, wait_seconds=0.5) as unpooled:
        with pytest.raises(psycopg.OperationalError):
            await unpooled.connections.check()


async def test_notification_sent_through_the_pooler_is_heard_past_it(ways: Ways, database: Database) -> None:
    async with open_listener(ways.direct, name="test", channels=("news",)) as listener:
        with listener.subscription("news", "hello") as subscription:
            await subscription.wait(60)  # Told of the connection itself.
            await database.notify("news", ["hello"])
            assert await subscription.wait(60)
