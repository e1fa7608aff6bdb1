"""PurgeTenant deletes all rows of the tenant, refuses new ones, and keeps other tenants."""

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from psycopg import sql
from spawnmesh.hook.v1 import tenant_hook_service_pb2 as tenant_pb
from spawnmesh.hook.v1.tenant_hook_service_pb2_grpc import TenantHookServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.rpc import purge_tenant
from spawnmesh_hook.store import tenants
from spawnmesh_postgres import tenant_purges
from spawnmesh_postgres.database import TenantPurged, open_database
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer

from tests.support.hook.dispatching import dispatch
from tests.support.hook.fixtures import (
    ALLOW,
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
    revise,
)
from tests.support.waiting import eventually


async def call(replica: Peer, tenant: Tenant, name: str, version: int = 0) -> Any:
    stub: Any = TenantHookServiceStub(replica.channel)
    with impersonate(tenant.tenant_id):
        request = getattr(tenant_pb, f"{name}Request")(settings_version=version)
        return await replica.unary(getattr(stub, name), request)


async def purge(replica: Peer, tenant: Tenant, version: int = 0) -> tuple[int, int, int]:
    """Call until done. Return the number of calls, deleted plugins and deleted rows."""
    calls = plugins = rows = 0
    while True:
        answer = await call(replica, tenant, "PurgeTenant", version)
        calls, plugins, rows = (
            calls + 1,
            plugins + answer.deleted_plugin_count,
            rows + answer.deleted_row_count,
        )
        if answer.done:
            return calls, plugins, rows


async def counted(database: ServiceDsn, tenant: Tenant) -> dict[str, int]:
    counts = {}
    async with await psycopg.AsyncConnection.connect(database.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant.tenant_id,))
        for table in tenants.PURGED_TABLES:
            query = sql.SQL("select count(*) from {}").format(sql.Identifier(table))
            [counts[table]] = await (await connection.execute(query)).fetchone() or (0,)
    return counts


async def filled(mesh: HookMesh, replica: Peer) -> Tenant:
    """Return a tenant with rows in every table."""
    tenant = mesh.tenant(replica)
    plugin = await mesh.plugin()
    again = revise("once more")
    again.revise.idempotency_key, again.revise.max_attempts = "k", 1
    plugin.says(ALLOW, again)
    await tenant.register("gate", plugin.endpoint, SPAWN, FINALIZE)
    await tenant.register("observer", DEAD_ENDPOINT, ENDED)
    await tenant.spawn()
    assert (await tenant.draft("one")).revision_number == 1
    assert await tenant.publish(ended("ended:1")) == 1
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
    assert (calls, plugins, rows) == (1, 3, sum(counts_before.values()))
    assert not any((await counted(databases["hook"], tenant)).values())
    with refused(Reason.UNKNOWN_TENANT):
        await tenant.register("late", DEAD_ENDPOINT, SPAWN)
    await tenant.draft("two")  # Without plugins, no decision is stored.
    assert await tenant.publish(ended("ended:2")) == 0
    assert await purge(replica, tenant) == (1, 0, 0)
    assert not any((await counted(databases["hook"], tenant)).values())

    with refused(
        Reason.UNKNOWN_TENANT
    ):  # Preparing without settings allows rows again, but the tenant stays unknown.
        await call(replica, tenant, "PrepareTenant")
        await tenant.register("late", DEAD_ENDPOINT, SPAWN)
    for _ in range(2):
        assert await tenant.prepare(1) == 1
    assert (await tenant.plugin_names(), await tenant.deliveries()) == ([], [])
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
    first = await call(replica, tenant, "PurgeTenant")
    assert (first.done, first.deleted_plugin_count) == (False, 3)
    with refused(Reason.CONFLICT):
        await call(replica, tenant, "PrepareTenant")
    other_replica = await mesh.replica()
    _, _, rows = await purge(other_replica, tenant)
    assert rows > 0
    assert not any((await counted(databases["hook"], tenant)).values())
    await call(replica, tenant, "PrepareTenant")


async def test_PurgeTenant__a_late_purge_keeps_the_tenant_that_was_created_anew(
    mesh: HookMesh, replica: Peer, databases: dict[str, ServiceDsn]
) -> None:
    tenant = await filled(mesh, replica)
    await tenant.prepare(3)
    for _ in range(2):
        assert (await purge(replica, tenant, 3))[0] == 1
    for stale in (2, 3):  # Settings of the purged tenant that arrive late.
        with refused(Reason.CONFLICT):
            await tenant.prepare(stale)
    assert await tenant.prepare(4) == 4
    await tenant.register("observer", DEAD_ENDPOINT, ENDED)
    assert await tenant.publish(ended("ended:9")) == 1
    counts_before = await counted(databases["hook"], tenant)
    for late in (1, 3):
        assert await purge(replica, tenant, late) == (1, 0, 0)
    assert await counted(databases["hook"], tenant) == counts_before
    assert await tenant.publish(ended("ended:10")) == 1
    assert (await purge(replica, tenant, 4))[1] == 1
    assert not any((await counted(databases["hook"], tenant)).values())
    assert await purge(replica, tenant, 3) == (1, 0, 0)
    with refused(Reason.CONFLICT):
        await tenant.prepare(4)


async def test_PurgeTenant__an_unfinished_purge_does_not_block_a_new_tenant(
    mesh: HookMesh, replica: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = mesh.tenant(replica)
    monkeypatch.setattr(purge_tenant, "_PAGES_PER_CALL", 0)
    assert not (await call(replica, tenant, "PurgeTenant", 3)).done
    with refused(Reason.CONFLICT):
        await tenant.prepare(3)
    assert await tenant.prepare(4) == 4
    await tenant.register("observer", DEAD_ENDPOINT, ENDED)


async def test_PurgeTenant__stops_if_the_tenant_is_created_anew_meanwhile(
    mesh: HookMesh, replica: Peer, databases: dict[str, ServiceDsn], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await filled(mesh, replica)
    await tenant.prepare(3)
    lock_purge, reached, go_on = tenant_purges.lock_purge, asyncio.Event(), asyncio.Event()

    async def held_up(*arguments: Any) -> bool:
        if not reached.is_set():
            reached.set()
            await go_on.wait()
        return await lock_purge(*arguments)

    monkeypatch.setattr(tenant_purges, "lock_purge", held_up)
    late = asyncio.create_task(purge(replica, tenant, 3))
    await asyncio.wait_for(reached.wait(), 20)
    await purge(replica, tenant, 3)
    await tenant.prepare(4)
    await tenant.register("observer", DEAD_ENDPOINT, ENDED)
    counts_before = await counted(databases["hook"], tenant)
    go_on.set()
    assert await late == (1, 0, 0)
    assert await counted(databases["hook"], tenant) == counts_before


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


async def test_PurgeTenant__only_the_session_service_may_call(
    mesh: HookMesh, replica: Peer, keys: Path
) -> None:
    tenant = mesh.tenant(replica)
    stub: Any = TenantHookServiceStub(replica.channel)
    with use_token(tenant._clients.client_token(tenant.tenant_id, "tester", 60)):
        for name in ("PurgeTenant", "PrepareTenant"):
            with pytest.raises(MeshError) as caught:
                await replica.unary(getattr(stub, name), getattr(tenant_pb, f"{name}Request")())
            assert caught.value.reason is Reason.CALLER_NOT_ALLOWED
