"""What is looked for in a tenant of which the planner was told nothing, or too little, costs what it gives."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook import outbox_store, store
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_postgres.database import EVERY_TENANT, Connection, Database, open_database
from spawnmesh_postgres.migrations import migrate

from tests.contract.test_hook_many_rows import TABLES, fill

ROWS = 10_000
NOW = "2026-01-01 00:00:00Z"
COUNTED: dict[str, tuple[int, int]] = {"never": (0, 0), "tenants of a few rows": (50, 20), "one tenant": (1, 1000)}


@pytest.fixture(params=list(COUNTED.values()), ids=list(COUNTED))
async def database(request: Any, databases: dict[str, ServiceDsn]) -> AsyncIterator[Database]:
    """The planner was told of so many tenants of so many rows each, and is told of no others."""
    migrate(databases["hook"].owner, package="spawnmesh_hook", schema="hook")
    tables = [sql.Identifier(table) for table in TABLES]
    async with await psycopg.AsyncConnection.connect(databases["hook"].owner, autocommit=True) as owner:
        await owner.execute(sql.SQL("truncate {}").format(sql.SQL(", ").join(tables)))
        for table in tables:
            await owner.execute(sql.SQL("alter table {} set (autovacuum_enabled = false)").format(table))
        others, size = request.param
        for number in range(others):
            await fill(databases["hook"], f"other-{number}", NOW, size)
        for table in tables if others else []:
            await owner.execute(sql.SQL("analyze {}").format(table))
        async with open_database(databases["hook"].app, name="test", max_connections=1) as opened:
            yield opened
        await owner.execute(sql.SQL("truncate {}").format(sql.SQL(", ").join(tables)))  # Other tests prune what is old.
        for table in tables:
            await owner.execute(sql.SQL("alter table {} reset (autovacuum_enabled)").format(table))


@pytest.fixture
async def tenant_id(database: Database, databases: dict[str, ServiceDsn]) -> str:
    """A tenant that nothing was told of, all of whose events the plugin `p` is still to be told of."""
    tenant_id = f"t-{uuid4().hex[:12]}"
    await fill(databases["hook"], tenant_id, NOW, ROWS)
    async with database.transaction(tenant_id) as connection:
        await connection.execute("update tellings set state = 'WAITING', due_time = now() - interval '1 hour'")
        for table in ("observed_events", "deliveries"):
            known = sql.SQL("update {} set hook = {}").format(
                sql.Identifier(table), sql.Literal(HookKind.SUBAGENT_ENDED.value)
            )
            await connection.execute(known)
    return tenant_id


async def rows_read(connection: Connection) -> int:
    """By the connection so far, in what its server has not published yet: within a transaction only what is read there is added."""
    counted = """select sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint + max(scanned)::bigint as count
                 from pg_index, (select sum(pg_stat_get_xact_tuples_returned(name::regclass)) as scanned
                                 from unnest(%(tables)s::text[]) name) tables
                 where indrelid = any (%(tables)s::regclass[])"""
    row = await (await connection.execute(counted, {"tables": list(TABLES)})).fetchone()
    assert row is not None
    return int(row["count"])


async def test_a_plugin_is_removed_by_comparing_what_it_is_to_be_told_of_with_nothing_else(
    database: Database, tenant_id: str
) -> None:
    """It takes a third of a second; if each event is compared with each telling, more than ten."""
    async with database.transaction(tenant_id) as connection:
        before = await rows_read(connection)
        await connection.execute("set local statement_timeout = '4s'")
        await store.remove_plugin(connection, tenant_id, "p")
        assert await rows_read(connection) - before < 10 * ROWS
        left = await connection.execute("select count(*) filter (where event = '') as emptied from observed_events")
        assert await left.fetchone() == {"emptied": ROWS}


async def test_a_plugin_that_is_to_be_told_of_nothing_is_removed_without_reading_the_tenant(
    database: Database, tenant_id: str
) -> None:
    async with database.transaction(tenant_id) as connection:
        before = await rows_read(connection)
        await store.remove_plugin(connection, tenant_id, "another")
        assert await rows_read(connection) - before < 100


async def test_some_of_a_backlog_are_taken_without_reading_all_of_it(database: Database, tenant_id: str) -> None:
    async with database.transaction(EVERY_TENANT) as connection:
        before = await rows_read(connection)
        taken = await outbox_store.take_due(connection, timedelta(seconds=30), 50)
        assert len(taken) == 50
        assert {telling.tenant_id for telling in taken} == {tenant_id}
        assert await rows_read(connection) - before < 20 * 50
