"""Transactions see one tenant, and report a server that does not answer."""

import asyncio

import psycopg
import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS, Database, switch_tenant
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import open_listener
from spawnmesh_postgres.statement_batches import execute_batch

from tests.support.postgres.notes import notes, write
from tests.support.waiting import eventually


async def test_statement_without_where_sees_the_tenants_rows_only(database: Database) -> None:
    await write(database, "acme", "acme")
    await write(database, "zeta", "zeta")
    assert await notes(database, "acme") == ["acme"]
    assert await notes(database, "zeta") == ["zeta"]


async def test_row_of_another_tenant_cannot_be_written(database: Database) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await write(database, "acme", "zeta")


async def test_connection_without_a_tenant_sees_nothing(database: Database, dsn: ServiceDsn) -> None:
    await write(database, "acme", "acme")
    for role in (dsn.app, dsn.owner):
        async with await psycopg.AsyncConnection.connect(role) as connection:
            assert await (await connection.execute("select * from notes")).fetchall() == []


ADD = "insert into notes values (%(tenant_id)s, %(note_id)s) returning note_id"


async def test_first_statements_are_sent_with_the_beginning_of_their_transaction(database: Database) -> None:
    hostile = "a' || \\ %(note_id)s; rollback; --"
    count = "select count(*) as count from notes;"
    parameters = {"tenant_id": "acme", "note_id": hostile}
    async with database.transaction_with_statements("acme", [count, ADD, count], parameters) as (
        connection,
        rows,
    ):
        assert rows == [[{"count": 0}], [{"note_id": hostile}], [{"count": 1}]]
        assert await notes(database, "acme") == []
        await connection.execute("insert into notes values ('acme', 'b')")
    assert await notes(database, "acme") == ["acme", "acme"]
    assert await notes(database, "zeta") == []


async def test_transaction_with_statements_is_rolled_back_if_one_of_them_or_its_block_fails(
    database: Database,
) -> None:
    add_two = [ADD, "insert into notes values ('zeta', 'b')"]
    own = {"tenant_id": "acme", "note_id": "a"}
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        async with database.transaction_with_statements("acme", add_two, own):
            pytest.fail("begun all the same")
    for _ in range(3):  # No connection is left in the middle of something.
        with pytest.raises(KeyError):
            async with database.transaction_with_statements("acme", [ADD], own):
                raise KeyError
    assert await notes(database, "acme") == []


async def test_each_statement_of_a_batch_sees_what_was_committed_while_an_earlier_one_waited(
    database: Database,
) -> None:
    lock = "select pg_advisory_xact_lock(%(key)s)"
    statements = ["select count(*) as count from notes", lock, "select count(*) as count from notes"]

    async def wait_and_count() -> list[int]:
        async with database.transaction("acme") as connection:
            before, _, behind = await execute_batch(connection, statements, {"key": 7})
            return [before[0]["count"], behind[0]["count"]]

    async with database.transaction("acme") as connection:
        await connection.execute(lock, {"key": 7})
        await connection.execute("insert into notes values ('acme', 'n')")
        counting = asyncio.create_task(wait_and_count())
        waiting = "select count(*) as count from pg_locks where not granted and locktype = 'advisory'"

        async def is_waiting() -> bool:
            row = await (await connection.execute(waiting)).fetchone()
            return row == {"count": 1}

        await eventually(is_waiting)
    assert await counting == [0, 1]


async def test_tenant_does_not_outlive_its_transaction(database: Database) -> None:
    await write(database, "acme", "acme")
    for _ in range(4):  # Whichever of the two connections comes.
        async with database.connections.use() as connection:
            rows = await (
                await connection.execute("select current_setting('spawnmesh.tenant', true) as scope")
            ).fetchone()
            assert rows is not None
            assert rows["scope"] in (None, "")


async def test_queue_may_turn_from_every_tenant_to_one(database: Database) -> None:
    await write(database, "acme", "acme")
    async with database.transaction(ALL_TENANTS) as connection:
        assert await (await connection.execute("select * from notes")).fetchall() == []
        await switch_tenant(connection, "acme")
        assert len(await (await connection.execute("select * from notes")).fetchall()) == 1


@pytest.mark.parametrize(
    "scope", ["", "a", "Acme", "acme'; drop table notes; --", "ac me", "-acme", "acme\n", "a" * 40]
)
async def test_malformed_tenant_is_refused_before_any_statement(database: Database, scope: str) -> None:
    with pytest.raises(ValueError, match="well-formed"):
        async with database.transaction(scope):
            pass


async def test_block_that_raises_leaves_nothing(database: Database) -> None:
    async def write_and_fail() -> None:
        async with database.transaction("acme") as connection:
            await connection.execute("insert into notes values ('acme', 'n')")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await write_and_fail()
    assert await notes(database, "acme") == []


async def test_defect_of_ours_is_not_explained_away(database: Database) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable) as caught:
        async with database.transaction("acme") as connection:
            await connection.execute("select * from nowhere")
    assert translate(caught.value) is None


async def test_cancelled_block_gives_its_connection_back(database: Database) -> None:
    async def hang() -> None:
        async with database.transaction("acme") as connection:
            await connection.execute("select pg_sleep(30)")

    hung = [asyncio.create_task(hang()) for _ in range(2)]
    async with asyncio.timeout(60):
        while database.connections.in_use < 2:
            await asyncio.sleep(0.01)
    for task in hung:
        task.cancel()
    await asyncio.gather(*hung, return_exceptions=True)
    assert await notes(database, "acme") == []


async def test_nul_in_a_text_is_the_callers_mistake(database: Database) -> None:
    with pytest.raises(psycopg.DataError) as caught:
        await write(database, "acme", "a\x00b")
    refusal = translate(caught.value)
    assert refusal is not None
    assert refusal.reason is Reason.INVALID_REQUEST


async def test_notification_reaches_the_listeners_of_its_channel(database: Database, dsn: ServiceDsn) -> None:
    async with open_listener(dsn.app, name="test", channels=("news",)) as listener:
        with listener.subscription("news", "one") as one, listener.subscription("news", "three") as three:
            assert await one.wait(60), "once it listens"
            assert await three.wait(60)
            await database.notify("news", ["one", "two"])
            assert await one.wait(60)
            assert not await three.wait(0.1)


async def test_connections_that_a_restart_closed_fail_no_call(database: Database, postgres: Postgres) -> None:
    async def use() -> None:
        async with database.transaction("acme") as connection:
            await connection.execute("select pg_sleep(0.05)")

    await asyncio.gather(use(), use())
    async with await psycopg.AsyncConnection.connect(postgres.superuser_dsn, autocommit=True) as superuser:
        await superuser.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'test'"
        )
        async with asyncio.timeout(60):
            left = "select count(*) from pg_stat_activity where application_name = 'test'"
            while await (await superuser.execute(left)).fetchone() != (0,):
                await asyncio.sleep(0.01)
    await asyncio.gather(use(), use())
    assert database.connections.in_use == 0
