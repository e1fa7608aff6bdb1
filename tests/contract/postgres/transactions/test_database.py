"""Transactions see one tenant, and report a server that does not answer."""

import asyncio

import psycopg
import pytest
from psycopg_pool import PoolTimeout
from spawnmesh_core.dependency_watch import DependencyDown, DependencyFault
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS, Database, open_database, switch_tenant
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
        async with database._connection() as connection:
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
        await database.check()  # Both connections are in use.
    await database.check()
    assert database.in_use == 0


async def test_probe_finds_a_server_that_is_not_there() -> None:
    dsn = "postgresql://nobody@127.0.0.1:1/none"
    async with open_database(dsn, name="test", max_connections=2, wait_seconds=0.2) as absent:
        with pytest.raises(DependencyDown) as caught:
            await absent.check()
    assert caught.value.fault is DependencyFault.UNREACHABLE


async def test_defect_of_ours_is_not_explained_away(database: Database) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable) as caught:
        async with database.transaction("acme") as connection:
            await connection.execute("select * from nowhere")
    assert translate(caught.value) is None


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


async def test_cancelled_block_gives_its_connection_back(database: Database) -> None:
    async def hang() -> None:
        async with database.transaction("acme") as connection:
            await connection.execute("select pg_sleep(30)")

    hung = [asyncio.create_task(hang()) for _ in range(2)]
    async with asyncio.timeout(60):
        while database.in_use < 2:
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


CALLED = """
create or replace function note(p_tenant_id text, p_note_id text) returns text language plpgsql as $$
begin
    insert into notes values (p_tenant_id, p_note_id);
    if p_note_id = 'broken' then
        raise exception 'broken';
    end if;
    return current_setting('spawnmesh.tenant', true);
end
$$;
"""
NOTE = "select note(%(tenant_id)s, %(note_id)s) as scope, pg_current_xact_id()::text as transaction"


@pytest.fixture
async def with_function(database: Database, dsn: ServiceDsn) -> Database:
    async with await psycopg.AsyncConnection.connect(dsn.owner) as owner:
        await owner.execute(CALLED)
    return database


async def test_called_statement_is_a_transaction_of_its_own_in_its_tenants_scope(
    with_function: Database,
) -> None:
    rows = [
        row for number in range(8) for row in await with_function.call("acme", NOTE, {"note_id": str(number)})
    ]
    assert {row["scope"] for row in rows} == {"acme"}
    assert len({row["transaction"] for row in rows}) == 8
    assert len(await notes(with_function, "acme")) == 8
    assert await notes(with_function, "zeta") == []
    for _ in range(4):  # Whichever of the two connections comes.
        async with with_function._connection() as connection:
            cursor = await connection.execute("select current_setting('spawnmesh.tenant', true) as scope")
            assert (await cursor.fetchone() or {})["scope"] in (None, "")


async def test_called_statement_that_fails_leaves_nothing_and_its_connection_works_on(
    with_function: Database,
) -> None:
    for _ in range(5):
        with pytest.raises(psycopg.errors.RaiseException):
            await with_function.call("acme", NOTE, {"note_id": "broken"})
    assert await notes(with_function, "acme") == []
    await with_function.call("acme", NOTE, {"note_id": "fine"})


async def test_called_statement_whose_row_a_migration_widens_goes_on(
    with_function: Database, dsn: ServiceDsn
) -> None:
    """The prepared statement cannot run again.

    It returns the new columns on every connection, also at the first call.
    """
    asked = "select (n.note).* from newest_note(%(tenant_id)s) n"
    async with await psycopg.AsyncConnection.connect(dsn.owner, autocommit=True) as owner:
        await owner.execute(
            "create function newest_note(p_tenant_id text, out note notes, out seen boolean) language plpgsql"
            " as 'begin select * into note from notes; seen := true; end'"
        )
        await with_function.call("acme", NOTE, {"note_id": "n"})
        for _ in range(20):
            (row,) = await with_function.call("acme", asked, {})
            assert set(row) == {"tenant_id", "note_id"}
        await owner.execute("alter table notes add column colour text")
        await owner.execute("alter function newest_note set enable_sort = off")
        try:
            for _ in range(20):
                (row,) = await with_function.call("acme", asked, {})
            assert set(row) == {"tenant_id", "note_id", "colour"}
        finally:
            await owner.execute("drop function newest_note")
            await owner.execute("alter table notes drop column colour")


async def test_transaction_whose_rows_a_migration_widens_is_refused_once_for_all_connections(
    database: Database, dsn: ServiceDsn
) -> None:
    """Clients repeat the call by themselves. It is not refused on the next connection again."""
    ready = asyncio.Barrier(2)

    async def prepare() -> None:
        async with database.transaction("acme") as link:
            await ready.wait()  # Each has a connection of its own.
            for _ in range(8):
                await link.execute("select * from notes")

    async with await psycopg.AsyncConnection.connect(dsn.owner, autocommit=True) as owner:
        await asyncio.gather(prepare(), prepare())
        await owner.execute("alter table notes add column colour text")
        try:
            with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
                async with database.transaction("acme") as link:
                    await link.execute("select * from notes")
            for _ in range(6):
                async with database.transaction("acme") as link:
                    await link.execute("select * from notes")
        finally:
            await owner.execute("alter table notes drop column colour")
    refusal = translate(caught.value)
    assert refusal is not None
    assert refusal.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert refusal.status is Status.UNAVAILABLE, "clients repeat it"
    assert translate(psycopg.errors.FeatureNotSupported("there is no such feature")) is None


@pytest.mark.parametrize("scope", ["", "Acme", "acme'; drop table notes; --"])
async def test_called_statement_of_a_malformed_tenant_is_refused(with_function: Database, scope: str) -> None:
    with pytest.raises(ValueError, match="well-formed"):
        await with_function.call(scope, NOTE, {"note_id": "n"})


async def test_called_statement_takes_the_scopes_tenant_and_no_other(with_function: Database) -> None:
    (row,) = await with_function.call("acme", NOTE, {"note_id": "n", "tenant_id": "zeta"})
    assert row["scope"] == "acme"


async def test_cancelled_call_gives_its_connection_back(with_function: Database) -> None:
    slow = "select pg_sleep(30)"
    hung = [asyncio.create_task(with_function.call("acme", slow, {})) for _ in range(2)]
    async with asyncio.timeout(60):
        while with_function.in_use < 2:
            await asyncio.sleep(0.01)
    for task in hung:
        task.cancel()
    await asyncio.gather(*hung, return_exceptions=True)
    assert await notes(with_function, "acme") == []


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
    assert database.in_use == 0
