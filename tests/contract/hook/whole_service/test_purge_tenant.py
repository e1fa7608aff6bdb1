"""PurgeTenant of the hook service: what plugins see of it, and what it leaves.

The contract that all participants share is tested in tests/contract/session/tenants.
"""

import asyncio

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from psycopg import sql
from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.store import tenants
from spawnmesh_postgres.database import TenantPurged, open_database
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer

from tests.support import tenancy
from tests.support.hook.dispatching import dispatch
from tests.support.hook.fixtures import (
    CLOSED,
    DEAD_ENDPOINT,
    ENDED,
    FINALIZE,
    MODEL,
    SPAWN,
    HookMesh,
    Tenant,
    ended,
    refused,
)
from tests.support.hook.scripted_plugin import ALLOW, revise
from tests.support.hook.webhook_receiver import (
    NO_RECEIVER,
    call_webhooks,
    put_webhook,
    run_ended,
)
from tests.support.waiting import eventually


async def purge(replica: Peer, tenant: Tenant, version: int = 0) -> tuple[int, int, int]:
    """Call until done. Return the number of calls, deleted plugins and deleted rows."""
    with impersonate(tenant.tenant_id):
        purged = await tenancy.purge_fully(replica, version)
    return purged.call_count, purged.removed.get("plugins", 0), purged.row_count


async def counted(database: ServiceDsn, tenant: Tenant) -> dict[str, int]:
    counts = {}
    async with await psycopg.AsyncConnection.connect(database.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant.tenant_id,))
        for table in tenants.TENANT_TABLES.rows:
            query = sql.SQL("select count(*) from {}").format(sql.Identifier(table))
            [counts[table]] = await (await connection.execute(query)).fetchone() or (0,)
    return counts


async def filled(mesh: HookMesh, replica: Peer) -> Tenant:
    """Return a tenant with rows in every table."""
    tenant = mesh.tenant(replica)
    plugin = await mesh.plugin()
    again = revise("once more")
    again.revise.objection_key, again.revise.max_attempts = "k", 1
    plugin.says(ALLOW, again)
    await tenant.register("gate", plugin.endpoint, SPAWN, FINALIZE)
    await tenant.register("observer", DEAD_ENDPOINT, ENDED)
    await tenant.spawn()
    assert (await tenant.draft("one")).revision_number == 1
    await put_webhook(tenant, NO_RECEIVER)
    assert await tenant.publish(ended("ended:1"), run_ended()) == 2
    await tenant.register("away", DEAD_ENDPOINT, MODEL, policy=CLOSED, max_wait=Duration(seconds=60))
    with refused(Reason.PLUGIN_FAILED):
        await dispatch(tenant, MODEL)
    return tenant


async def test_PurgeTenant__deletes_all_rows_and_refuses_new_ones_until_prepared(
    mesh: HookMesh, replica: Peer, databases: dict[str, ServiceDsn]
) -> None:
    other, tenant = await filled(mesh, replica), await filled(mesh, replica)
    counts_before = await counted(databases["hook"], other)
    assert all(counts_before.values()), counts_before
    calls, plugins, rows = await purge(replica, tenant)
    assert (calls, plugins, rows) == (1, 3, sum(counts_before.values()) + 1)
    assert not any((await counted(databases["hook"], tenant)).values())
    with refused(Reason.UNKNOWN_TENANT):
        await tenant.register("late", DEAD_ENDPOINT, SPAWN)
    await tenant.draft("two")  # Without plugins, no decision is stored.
    with refused(Reason.UNKNOWN_TENANT):
        await put_webhook(tenant, NO_RECEIVER)
    assert await tenant.publish(ended("ended:2"), run_ended(2)) == 0
    assert await purge(replica, tenant) == (1, 0, 0)
    assert not any((await counted(databases["hook"], tenant)).values())

    for _ in range(2):
        assert await tenant.prepare(1) == 1
    assert (await tenant.plugin_names(), await tenant.deliveries()) == ([], [])
    listed = await call_webhooks(tenant, "ListWebhooks", pb.ListWebhooksRequest())
    assert list(listed.webhooks) == []
    plugin = await mesh.plugin()
    plugin.says(revise("anew"))
    await tenant.register("gate", plugin.endpoint, FINALIZE)
    assert (await tenant.draft("one")).revision_number == 1
    assert len(plugin.heard) == 1
    assert await counted(databases["hook"], other) == counts_before


async def test_PurgeTenant__another_call_resumes_the_purge(
    mesh: HookMesh, replica: Peer, databases: dict[str, ServiceDsn]
) -> None:
    """The tenant has more rows than the planner's statistics say."""
    tenant = await filled(mesh, replica)
    async with await psycopg.AsyncConnection.connect(databases["hook"].owner, autocommit=True) as owner:
        await owner.execute("analyze run_revisions")
        await owner.execute("alter table run_revisions set (autovacuum_enabled = false)")
    async with await psycopg.AsyncConnection.connect(databases["hook"].app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant.tenant_id,))
        await connection.execute(
            """insert into run_revisions (tenant_id, run_id, revision_count)
               select current_setting('spawnmesh.tenant'), 'run_' || n, 1 from generate_series(2, 45000) n"""
        )
    with impersonate(tenant.tenant_id):
        first = await tenancy.purge(replica)
    assert (first.done, first.removed["plugins"]) == (False, 3)
    with refused(Reason.CONFLICT):
        await tenant.prepare(1)
    other_replica = await mesh.replica()
    _, _, rows = await purge(other_replica, tenant)
    assert rows > 0
    assert not any((await counted(databases["hook"], tenant)).values())
    assert await tenant.prepare(1) == 1


async def test_PurgeTenant__waits_for_open_transactions_and_deletes_their_rows(
    mesh: HookMesh, replica: Peer, databases: dict[str, ServiceDsn]
) -> None:
    tenant = mesh.tenant(replica)
    async with open_database(databases["hook"].app, name="test", max_connections=1) as database:
        async with database.adding(tenant.tenant_id) as connection:
            await connection.execute(
                "insert into run_revisions values (current_setting('spawnmesh.tenant'), 'run_1', 1)"
            )
            purging = asyncio.create_task(purge(replica, tenant))
            await eventually(lambda: waits_for_a_lock(databases["hook"], tenant))
            assert not purging.done()
        assert await purging == (1, 0, 1)
        with pytest.raises(TenantPurged):
            async with database.adding(tenant.tenant_id):
                pass
    assert not any((await counted(databases["hook"], tenant)).values())


async def waits_for_a_lock(database: ServiceDsn, tenant: Tenant) -> bool:
    query = """
        select count(*) from pg_locks
        where locktype = 'advisory' and not granted
          and (classid::bigint << 32 | objid::bigint) = hashtextextended('hook rows of ' || %s, 0)"""
    async with await psycopg.AsyncConnection.connect(database.app) as connection:
        [waiting] = await (await connection.execute(query, (tenant.tenant_id,))).fetchone() or (0,)
    return bool(waiting)
