"""The request path goes through a real PgBouncer in transaction mode; what listens goes past it."""

import asyncio
import os
import shutil
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.database import SCOPE, Database, open_database
from spawnmesh_postgres.listener import open_listener
from spawnmesh_postgres.roles import Entries, prepare_database

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SERVER_CONNECTIONS = 2

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed (Debian's package pgbouncer)")

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
    """To one schema: through the pooler, and straight."""

    pooled: str
    direct: str


@pytest.fixture(scope="module")
async def ways(postgres: Postgres) -> AsyncIterator[Ways]:
    database = f"pooled_{uuid4().hex[:12]}"
    app, owner = (
        make_conninfo(postgres.superuser_dsn, user=role, dbname=database) for role in ("notes", "notes_owner")
    )
    await asyncio.to_thread(prepare_database, postgres.superuser_dsn, {"notes": Entries(app, owner)})
    with psycopg.connect(owner) as connection:
        connection.execute(TABLE)
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="spawnmesh-pgbouncer-") as folder:
        root = Path(folder)
        root.chmod(0o777)  # It does not run as root, and becomes another account.
        (root / "users.txt").write_text('"notes" ""\n')
        host = conninfo_to_dict(postgres.superuser_dsn)["host"]
        (root / "pgbouncer.ini").write_text(
            f"[databases]\n{database} = host={host} user=notes\n[pgbouncer]\npool_mode = transaction\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {root / 'users.txt'}\ndefault_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = 100\n"
        )
        # The server's socket lies in its data directory, which only its own account enters.
        account = ["-u", Path(str(host)).owner()] if os.geteuid() == 0 else []
        assert PGBOUNCER is not None
        pooler = await asyncio.create_subprocess_exec(
            PGBOUNCER, "-q", *account, str(root / "pgbouncer.ini"), stdout=DEVNULL, stderr=DEVNULL
        )
        pooled = f"postgresql://notes@127.0.0.1:{port}/{database}"
        try:
            await _until_it_answers(pooled)
            yield Ways(pooled, app)
        finally:
            pooler.kill()
            await pooler.wait()


async def _until_it_answers(dsn: str) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(dsn):
                    return
            except psycopg.OperationalError:
                await asyncio.sleep(0.05)


@pytest.fixture
async def database(ways: Ways) -> AsyncIterator[Database]:
    async with open_database(ways.pooled, name="test", max_connections=8, pooled=True, wait_seconds=30) as opened:
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


async def test_statement_that_is_made_often_needs_nothing_that_was_left_on_a_connection(database: Database) -> None:
    statement = f"select add_note({SCOPE}, %(note_id)s) as note_id"

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
            await unpooled.check()


async def test_notification_sent_through_the_pooler_is_heard_past_it(ways: Ways, database: Database) -> None:
    async with open_listener(ways.direct, name="test", channels=("news",)) as listener:
        with listener.subscription("news", "hello") as subscription:
            await subscription.wait(5)  # Told of the connection itself.
            await database.notify("news", ["hello"])
            assert await subscription.wait(5)
