"""A read-only server is reported as unavailable, and used again as soon as it accepts writes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import ReadOnlySqlTransaction
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database

TABLE = """
create table notes (tenant_id text not null, note_id text not null);
create function add_note(tenant text, note text) returns text language sql
    as $$ insert into notes values (tenant, note) returning note_id $$;
"""
CONNECTIONS = 2
Way = Callable[[Database], Awaitable[None]]


@pytest.fixture
def dsn(postgres: Postgres) -> ServiceDsn:
    name = f"r_{uuid4().hex[:12]}"
    app, owner = (
        make_conninfo(postgres.superuser_dsn, user=user, dbname=name) for user in ("notes", "notes_owner")
    )
    prepare_database(postgres.superuser_dsn, {"notes": DatabaseUrls(app, owner)})
    with psycopg.connect(owner) as connection:
        connection.execute(TABLE.encode())
    return ServiceDsn(app, owner)


@pytest.fixture
async def database(dsn: ServiceDsn) -> AsyncIterator[Database]:
    async with open_database(dsn.app, name="read_only_test", max_connections=CONNECTIONS) as opened:
        yield opened


async def in_transaction(database: Database) -> None:
    async with database.transaction("acme") as connection:
        await connection.execute("insert into notes values ('acme', 'n')")


async def as_first_statement(database: Database) -> None:
    insert = "insert into notes values ('acme', %(note_id)s) returning note_id"
    async with database.transaction_with_statements("acme", [insert], {"note_id": "n"}):
        pass


async def in_pipeline(database: Database) -> None:
    async with database.pipelined("acme") as connection:
        await (
            await connection.execute("insert into notes values ('acme', 'n') returning note_id")
        ).fetchone()


async def at_the_end_of_a_pipeline(database: Database) -> None:
    async with database.pipelined("acme") as connection:
        await connection.execute("insert into notes values ('acme', 'n')")


async def by_call(database: Database) -> None:
    await database.call("acme", "select add_note(%(tenant_id)s, %(note_id)s)", {"note_id": "n"})


def set_on_server(postgres: Postgres, dsn: ServiceDsn, words: str, *, cut_off: bool) -> None:
    """Change a setting for all new connections."""
    name = conninfo_to_dict(dsn.app)["dbname"]
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as superuser:
        superuser.execute(f"alter database {name} {words}".encode())
        if cut_off:
            superuser.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = %s", (name,)
            )


@pytest.mark.parametrize(
    "way", [in_transaction, as_first_statement, in_pipeline, at_the_end_of_a_pipeline, by_call]
)
async def test_server_that_takes_no_writes_is_unavailable_until_it_takes_them(
    database: Database, dsn: ServiceDsn, postgres: Postgres, way: Way
) -> None:
    await way(database)
    set_on_server(postgres, dsn, "set default_transaction_read_only = on", cut_off=True)
    for _ in range(CONNECTIONS + 1):
        with pytest.raises(ReadOnlySqlTransaction) as caught:
            await way(database)
    refusal = translate(caught.value)
    assert refusal is not None
    assert (refusal.reason, refusal.retry_after_seconds) == (Reason.DEPENDENCY_UNAVAILABLE, 1.0)
    assert str(refusal).endswith("PostgreSQL is read-only at the moment; call again later")
    assert refusal.facts == {"dependency": "PostgreSQL"}
    set_on_server(postgres, dsn, "reset default_transaction_read_only", cut_off=False)
    for _ in range(CONNECTIONS):  # Each connection of that time fails once.
        try:
            await way(database)
        except ReadOnlySqlTransaction:
            continue
    for _ in range(CONNECTIONS + 1):
        await way(database)
    assert database.connections.in_use == 0
