"""Statements read about as many rows as they return, even if the planner's statistics are stale."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.store import outbox, plugins, retention, tenants, webhook_deliveries
from spawnmesh_hook.store.webhook_deliveries import WebhookDeliveryQuery
from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database, open_database
from spawnmesh_postgres.jobs import store as jobs
from spawnmesh_postgres.migrations import migrate
from spawnmesh_postgres.tenant_participant import PAGE_ROWS
from spawnmesh_postgres.tenant_tables import delete_rows

from tests.support.hook.many_rows import TABLES, fill

ROWS = 2_500  # More than a page of a purge, and far fewer than the pairs of its rows.
OLD, NEW = "2026-01-01 00:00:00Z", "2099-01-01 00:00:00Z"
BATCH_ROWS = 2_000
ANALYZED: dict[str, tuple[int, int]] = {
    "never": (0, 0),
    "tenants of a few rows": (50, 20),
    "one tenant": (1, 1000),
}


@pytest.fixture(params=list(ANALYZED.values()), ids=list(ANALYZED))
async def database(request: Any, databases: dict[str, ServiceDsn]) -> AsyncIterator[Database]:
    """A database whose statistics know only that many tenants of that many rows each."""
    migrate(databases["hook"].owner, package="spawnmesh_hook", schema="hook")
    tables = [sql.Identifier(table) for table in TABLES]
    truncate = sql.SQL("truncate {}").format(sql.SQL(", ").join(tables))
    async with await psycopg.AsyncConnection.connect(databases["hook"].owner, autocommit=True) as owner:
        await owner.execute(truncate)
        for table in tables:
            await owner.execute(sql.SQL("alter table {} set (autovacuum_enabled = false)").format(table))
        others, size = request.param
        await fill(databases["hook"], [f"other-{number}" for number in range(others)], OLD, size)
        for table in tables if others else []:
            await owner.execute(sql.SQL("analyze {}").format(table))
        async with open_database(databases["hook"].app, name="test", max_connections=1) as opened:
            yield opened
        await owner.execute(truncate)  # Other tests prune old rows.
        for table in tables:
            await owner.execute(sql.SQL("alter table {} reset (autovacuum_enabled)").format(table))


async def unknown_tenant(database: Database, databases: dict[str, ServiceDsn]) -> str:
    """Fill a tenant that the statistics do not know. All its events are pending for the plugin `p`."""
    tenant_id = f"t-{uuid4().hex[:12]}"
    await fill(databases["hook"], [tenant_id], OLD, ROWS)
    async with database.transaction(tenant_id) as connection:
        await connection.execute("update jobs set dead_time = null, due_time = now() - interval '1 hour'")
        for table in ("observed_events", "deliveries"):
            known = sql.SQL("update {} set hook = {}").format(
                sql.Identifier(table), sql.Literal(HookKind.SUBAGENT_ENDED.value)
            )
            await connection.execute(known)
    return tenant_id


async def rows_read(connection: Connection) -> int:
    """Return the rows that this connection has read and not yet reported to the statistics.

    Within a transaction, the difference of two calls is what the statements between them read.
    """
    counted = """
        select sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint + max(scanned)::bigint as count
        from pg_index, (
            select sum(pg_stat_get_xact_tuples_returned(name::regclass)) as scanned
            from unnest(%(tables)s::text[]) name
        ) tables
        where indrelid = any (%(tables)s::regclass[])"""
    row = await (await connection.execute(counted, {"tables": list(TABLES)})).fetchone()
    assert row is not None
    return int(row["count"])


async def row_counts(database: Database, tenant_id: str) -> set[int]:
    counts = set()
    async with database.transaction(tenant_id) as connection:
        for table in TABLES:
            query = sql.SQL("select count(*) as count from {}").format(sql.Identifier(table))
            row = await (await connection.execute(query)).fetchone()
            assert row is not None
            counts.add(row["count"])
    return counts


async def remove_plugin(connection: Connection, tenant_id: str, name: str) -> None:
    await plugins.delete_plugin(connection, tenant_id, name)
    await outbox.delete_deliveries_of_plugin(connection, tenant_id, name)


async def test_statements_read_about_as_many_rows_as_they_return(
    database: Database, databases: dict[str, ServiceDsn]
) -> None:
    """One test, since the rows take longer to insert than to read."""
    tenant_id = await unknown_tenant(database, databases)
    await check_claim(database, tenant_id)
    await check_removals(database, tenant_id)
    await check_webhooks(database, tenant_id)
    await check_purge(database, tenant_id)
    tenant_id = await unknown_tenant(database, databases)
    await fill(databases["hook"], ["modern"], NEW, 10)
    await check_pruning(database, tenant_id)
    await check_pruning(database, "modern")
    assert await row_counts(database, tenant_id) == {0}
    assert await row_counts(database, "modern") == {10}


async def check_claim(database: Database, tenant_id: str) -> None:
    """Claim a few entries without reading the backlog."""
    async with database.transaction(ALL_TENANTS) as connection:
        before = await rows_read(connection)
        quota = jobs.ClaimQuota(50, 50, {})
        claim = jobs.claim_statement(outbox.DELIVER_EVENT, quota, timedelta(seconds=30))
        claimed = await (await connection.execute(*claim)).fetchall()
        assert len(claimed) == 50
        assert {row["tenant_id"] for row in claimed} == {tenant_id}
        assert await rows_read(connection) - before < 20 * 50


async def check_removals(database: Database, tenant_id: str) -> None:
    """Remove a plugin without comparing each event with each entry, and roll back."""
    async with database.transaction(tenant_id) as connection, connection.transaction(force_rollback=True):
        before = await rows_read(connection)
        await remove_plugin(connection, tenant_id, "another")
        assert await rows_read(connection) - before < 100, "a plugin without entries"
        before = await rows_read(connection)
        await remove_plugin(connection, tenant_id, "p")
        assert await rows_read(connection) - before < 10 * ROWS, "the plugin of all entries"
        left = await connection.execute(
            "select count(*) filter (where event = '') as emptied from observed_events"
        )
        assert await left.fetchone() == {"emptied": ROWS}


async def check_webhooks(database: Database, tenant_id: str) -> None:
    """Read, replay, send and give up a few of the messages of a webhook, and roll back."""
    long_ago, some_day = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
    query = WebhookDeliveryQuery("another", None, None, long_ago, some_day, some_day, "~")
    async with database.transaction(tenant_id) as connection, connection.transaction(force_rollback=True):
        before = await rows_read(connection)
        await webhook_deliveries.list_webhook_deliveries(
            connection, tenant_id, "w", query, page_size=50, scan_limit=50
        )
        assert await rows_read(connection) - before < 10 * 50, "a page"
        before = await rows_read(connection)
        failed = await webhook_deliveries.list_failed(connection, tenant_id, "w", long_ago, 50)
        await webhook_deliveries.require_messages(connection, tenant_id, "w", failed)
        assert await webhook_deliveries.replay_messages(connection, tenant_id, "w", failed, "") == 50
        assert await rows_read(connection) - before < 20 * 50, "a replay"
        for webhook_id, count in (("another", 0), ("w", 16)):
            before = await rows_read(connection)
            due = await webhook_deliveries.list_due_messages(connection, tenant_id, webhook_id, 16)
            assert len(due) == count
            wait = await webhook_deliveries.time_to_next(connection, tenant_id, webhook_id)
            assert (wait is None) == (count == 0)
            assert await rows_read(connection) - before < 200, webhook_id
        everything = [f"evt_{number}" for number in range(1, ROWS + 1)]
        await webhook_deliveries.replay_messages(connection, tenant_id, "w", everything, "")
        before = await rows_read(connection)
        given_up = await webhook_deliveries.expire_messages(connection, tenant_id, "w", some_day, 100)
        assert given_up == 100
        assert await rows_read(connection) - before < 20 * 100, "a part of the messages that wait"
        for webhook_id, most in (("another", 100), ("w", 10 * ROWS)):
            before = await rows_read(connection)
            await webhook_deliveries.hasten_messages(connection, tenant_id, webhook_id)
            await webhook_deliveries.delete_job(connection, tenant_id, webhook_id)
            assert await rows_read(connection) - before < most, webhook_id


async def check_purge(database: Database, tenant_id: str) -> None:
    """Purge the tenant without comparing each row with each other."""
    for table in (table for table in tenants.TENANT_TABLES.rows if table != "plugins"):
        deleted = PAGE_ROWS
        while deleted >= PAGE_ROWS:
            async with database.transaction(tenant_id) as connection:
                keys = await tenants.TENANT_TABLES.read_keys(connection)
                before = await rows_read(connection)
                deleted = await delete_rows(connection, tenant_id, table, keys, PAGE_ROWS)
                assert await rows_read(connection) - before < 10 * ROWS, table
    assert await row_counts(database, tenant_id) == {0}


async def check_pruning(database: Database, tenant_id: str) -> None:
    """Delete old rows without comparing each row with each other."""
    deleted = BATCH_ROWS
    while deleted:
        async with database.transaction(tenant_id) as connection:
            before = await rows_read(connection)
            deleted = await retention.delete_old_rows(connection, tenant_id, timedelta(days=30), BATCH_ROWS)
            assert await rows_read(connection) - before < 10 * ROWS * len(TABLES)
