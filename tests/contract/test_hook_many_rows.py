"""Many rows that the statistics know nothing of are gone in seconds: a page is found and deleted once, whatever is planned."""

from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg import sql
from spawnmesh.hook.v1 import tenant_hook_service_pb2 as tenant_pb
from spawnmesh.hook.v1.tenant_hook_service_pb2_grpc import TenantHookServiceStub
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.acting import acting_for

from tests.contract.hook_fixtures import HookMesh, Tenant, open_mesh

ROWS = 50_000
SOON_SECONDS = 45.0  # It takes five to ten; with one plan that is quadratic in one of the tables, more than a minute.
TABLES = ("tellings", "observed_events", "decisions", "run_revisions", "revision_keys", "deliveries")
FILL = """
insert into observed_events (tenant_id, event_key, hook, session_id, run_id, event, traceparent, publish_time)
    select %(tenant)s, 'e' || n, 'subagent_ended', 's', 'r', '', '', %(time)s from generate_series(1, %(rows)s) n;
insert into tellings (tenant_id, event_key, plugin, state) select %(tenant)s, 'e' || n, 'p', 'DEAD' from generate_series(1, %(rows)s) n;
insert into decisions (tenant_id, run_id, dispatch_key, state, asker, asking_until, decide_time)
    select %(tenant)s, 'r' || n, 'd', 'DECIDED', gen_random_uuid(), now(), %(time)s from generate_series(1, %(rows)s) n;
insert into run_revisions (tenant_id, run_id, revision_count, change_time)
    select %(tenant)s, 'r' || n, 1, %(time)s from generate_series(1, %(rows)s) n;
insert into revision_keys (tenant_id, run_id, plugin, idempotency_key, attempt_count, change_time)
    select %(tenant)s, 'r' || n, 'p', 'k', 1, %(time)s from generate_series(1, %(rows)s) n;
insert into deliveries (tenant_id, delivery_id, plugin, hook, session_id, run_id, start_time, latency, decision, error)
    select %(tenant)s, 'd' || n, 'p', 'h', 's', 'r' || n, %(time)s, '1s', 'allow', '' from generate_series(1, %(rows)s) n;
"""
OLD, NEW = "2020-01-01 00:00:00Z", "2099-01-01 00:00:00Z"


@pytest.fixture(params=["never", "before"])
async def mesh(request: Any, databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    """Analysed never, or before the rows came; and never on its own accord."""
    database = databases["hook"]
    async with open_mesh(database, keys) as opened:
        async with await psycopg.AsyncConnection.connect(database.owner, autocommit=True) as owner:
            for table in TABLES:
                await owner.execute(
                    sql.SQL("alter table {} set (autovacuum_enabled = false)").format(sql.Identifier(table))
                )
            await owner.execute(sql.SQL("truncate {}").format(sql.SQL(", ").join(map(sql.Identifier, TABLES))))
            if request.param == "before":
                await fill(database, "somebody", NEW, 3)
                for table in TABLES:
                    await owner.execute(sql.SQL("analyze {}").format(sql.Identifier(table)))
        yield opened
        async with await psycopg.AsyncConnection.connect(database.owner, autocommit=True) as owner:
            for table in TABLES:
                await owner.execute(sql.SQL("alter table {} reset (autovacuum_enabled)").format(sql.Identifier(table)))


async def fill(database: ServiceDsn, tenant_id: str, time: str, rows: int) -> None:
    """In one transaction; so many rows in each table."""
    async with await psycopg.AsyncConnection.connect(
        database.app, cursor_factory=psycopg.AsyncClientCursor
    ) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant_id,))
        await connection.execute(FILL, {"tenant": tenant_id, "time": time, "rows": rows})


async def left(database: ServiceDsn, tenant_id: str) -> dict[str, int]:
    async with await psycopg.AsyncConnection.connect(database.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant_id,))
        counts = {}
        for table in TABLES:
            query = sql.SQL("select count(*) from {}").format(sql.Identifier(table))
            [counts[table]] = await (await connection.execute(query)).fetchone() or (0,)
    return counts


async def test_PurgeTenant__many_rows_go_in_seconds(mesh: HookMesh, databases: dict[str, ServiceDsn]) -> None:
    replica = await mesh.replica()
    tenant = mesh.tenant(replica)
    await fill(databases["hook"], tenant.tenant_id, NEW, ROWS)

    begun = monotonic()
    while not await purged(replica, tenant):
        pass

    took = monotonic() - begun
    assert not any((await left(databases["hook"], tenant.tenant_id)).values())
    assert took < SOON_SECONDS


async def purged(replica: Any, tenant: Tenant) -> bool:
    stub: Any = TenantHookServiceStub(replica.channel)
    with acting_for(tenant.tenant_id):
        answer = await replica.unary(stub.PurgeTenant, tenant_pb.PurgeTenantRequest(), timeout_seconds=SOON_SECONDS)
    return bool(answer.done)


async def test_many_rows_that_are_too_old_go_in_seconds(mesh: HookMesh, databases: dict[str, ServiceDsn]) -> None:
    await fill(databases["hook"], "ancient", OLD, ROWS)
    await fill(databases["hook"], "modern", NEW, 10)
    tellers = await mesh.tellers()

    begun = monotonic()
    while await tellers.prune():
        pass

    took = monotonic() - begun
    assert not any((await left(databases["hook"], "ancient")).values())
    assert set((await left(databases["hook"], "modern")).values()) == {10}
    assert took < SOON_SECONDS
