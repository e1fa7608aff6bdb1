"""A server that does not serve, and a pool that has no connection, are reported as what they are."""

import asyncio

import psycopg
import pytest
from psycopg_pool import PoolTimeout
from spawnmesh_core.dependency_watch import DependencyDown, DependencyFault
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.errors import translate

from tests.support.postgres.notes import notes


async def test_every_connection_in_use_is_pool_exhausted(database: Database) -> None:
    async with database.transaction("acme"), database.transaction("acme"):
        with pytest.raises(PoolTimeout) as caught:
            await notes(database, "acme")
    refusal = translate(caught.value)
    assert refusal is not None
    assert refusal.reason is Reason.POOL_EXHAUSTED
    assert await notes(database, "acme") == []


async def test_connection_cut_off_is_unavailable_and_the_next_one_works(
    database: Database, postgres: Postgres
) -> None:
    async def cut_off() -> None:
        async with database.transaction("acme") as connection:
            async with await psycopg.AsyncConnection.connect(
                postgres.superuser_dsn, autocommit=True
            ) as superuser:
                await superuser.execute("select pg_terminate_backend(%s)", (connection.info.backend_pid,))
            await connection.execute("select 1")

    with pytest.raises(psycopg.OperationalError) as caught:
        await cut_off()
    refusal = translate(caught.value)
    assert refusal is not None
    assert refusal.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert await notes(database, "acme") == []


async def test_server_that_is_not_there_is_unavailable() -> None:
    async with open_database(
        "postgresql://nobody@127.0.0.1:1/none", name="test", max_connections=2, wait_seconds=0.2
    ) as absent:
        with pytest.raises(psycopg.OperationalError) as caught:
            await notes(absent, "acme")
    refusal = translate(caught.value)
    assert refusal is not None
    assert refusal.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_server_that_is_not_there_is_reported_long_before_an_exhausted_pool_would_be() -> None:
    dsn = "postgresql://nobody@127.0.0.1:1/none"
    async with (
        asyncio.timeout(60),
        open_database(dsn, name="test", max_connections=2, wait_seconds=3600) as absent,
    ):
        with pytest.raises(psycopg.OperationalError):
            await notes(absent, "acme")


async def test_probe_waits_for_no_connection_while_requests_have_all(database: Database) -> None:
    async with database.transaction("acme"), database.transaction("zeta"):
        await database.connections.check()  # Both connections are in use.
    await database.connections.check()
    assert database.connections.in_use == 0


async def test_probe_finds_a_server_that_is_not_there() -> None:
    dsn = "postgresql://nobody@127.0.0.1:1/none"
    async with open_database(dsn, name="test", max_connections=2, wait_seconds=0.2) as absent:
        with pytest.raises(DependencyDown) as caught:
            await absent.connections.check()
    assert caught.value.fault is DependencyFault.UNREACHABLE


@pytest.mark.parametrize(
    "sqlstate",
    [
        pytest.param("53000", id="insufficient resources"),
        pytest.param("53100", id="disk full"),
        pytest.param("53200", id="out of memory"),
        pytest.param("53300", id="too many connections"),
        pytest.param("53400", id="configured limit exceeded"),
        pytest.param("58000", id="system error"),
        pytest.param("58030", id="input or output error"),
        pytest.param("58P01", id="undefined file"),
    ],
)
async def test_server_in_trouble_is_unavailable(database: Database, sqlstate: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        async with database.transaction("acme") as connection:
            await connection.execute(f"do $$ begin raise exception using errcode = '{sqlstate}'; end $$")
    assert caught.value.sqlstate == sqlstate
    refusal = translate(caught.value)
    assert refusal is not None
    assert (refusal.reason, refusal.facts) == (Reason.DEPENDENCY_UNAVAILABLE, {"dependency": "PostgreSQL"})
    assert await notes(database, "acme") == []
