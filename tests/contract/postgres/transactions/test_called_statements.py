"""A statement that is called is a transaction of its own, in one round trip."""

import asyncio

import psycopg
import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.errors import translate

from tests.support.postgres.notes import notes

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
        async with with_function.connections.use() as connection:
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
        while with_function.connections.in_use < 2:
            await asyncio.sleep(0.01)
    for task in hung:
        task.cancel()
    await asyncio.gather(*hung, return_exceptions=True)
    assert await notes(with_function, "acme") == []
