"""PurgeTenant: the policy and the usage are deleted, and stay so until the tenant is
created again.
"""

import asyncio

import psycopg
import pytest
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_model_router.rpc import purge_tenant
from spawnmesh_model_router.store import budgets, tenants
from spawnmesh_postgres.database import Connection, open_database
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import Router, World, image_block, user
from tests.support.model_router.provider import BROKEN, chat, sse
from tests.support.waiting import eventually


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("one", sse(*chat("one")))
    world.provider.on("blind", sse(*chat("blind")))
    return world


async def purge(router: Router, version: int = 0) -> pb.PurgeTenantResponse:
    token = TokenMinter("session", router.keys / "session.pem").service_token(router.tenant)
    answer: pb.PurgeTenantResponse = await router.call(
        "PurgeTenant", pb.PurgeTenantRequest(settings_version=version), token
    )
    return answer


async def counted(world: World, router: Router) -> tuple[int, int]:
    """Return the number of rows of policies and of usage."""
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (router.tenant,))
        query = "select (select count(*) from tenant_policies), (select count(*) from budget_periods)"
        policies, periods = await (await connection.execute(query)).fetchone() or (0, 0)
    return policies, periods


async def test_PurgeTenant__removes_policy_and_budgets_and_counts_nothing_any_more(world: World) -> None:
    first, other = await world.router(), await world.router()
    second = await world.router(tenant=first.tenant)
    for router in (first, other):
        await router.prepare(
            7, max_requests_per_minute=1, blind_model_policy=routing_pb2.BLIND_MODEL_POLICY_REFUSE
        )
        assert (await router.generate(world.ref("one"))).text == "one"
    assert (await second.generate(world.ref("one"))).refused.reason is Reason.BUDGET_EXCEEDED
    _, periods = await counted(world, first)
    assert periods >= 2

    answer = await purge(first)
    assert (answer.done, answer.deleted_row_count) == (True, 1 + periods)
    assert await counted(world, first) == (0, 0)

    async def unlimited() -> bool:
        return (await second.generate(world.ref("one"))).refusal is None

    await eventually(unlimited)
    assert (await first.generate(world.ref("blind"), messages=[user("look", image_block())])).refusal is None
    assert await counted(world, first) == (0, 0)
    again = await purge(second)
    assert (again.done, again.deleted_row_count) == (True, 0)

    assert await first.prepare(1, max_requests_per_minute=5) == 1
    assert (await second.generate(world.ref("one"))).text == "one"
    policies, periods = await counted(world, first)
    assert (policies, periods >= 1) == (1, True)
    assert (await other.generate(world.ref("one"))).refused.reason is Reason.BUDGET_EXCEEDED


async def test_PurgeTenant__late_usage_is_not_stored(world: World) -> None:
    """A replica that does not know of the purge yet uses the policy it knows."""
    router = await world.router()
    await router.prepare(1, max_tokens_per_minute=1000)
    assert (await router.generate(world.ref("one"))).text == "one"
    await purge(router)
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (router.tenant,))
        late = await connection.execute(
            "insert into budget_periods values (current_setting('spawnmesh.tenant'), 'MINUTE', now(), 1, 1, 1) returning 1"
        )
        assert await late.fetchone() is None
    assert await counted(world, router) == (0, 0)


async def test_PurgeTenant__in_pages_and_not_ready_again_before_it_is_done(world: World) -> None:
    router = await world.router()
    await router.prepare(1, max_requests_per_minute=9)
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (router.tenant,))
        await connection.execute(
            """insert into budget_periods
               select current_setting('spawnmesh.tenant'), 'MINUTE', now() - n * interval '1 minute', 1, 1, 1
               from generate_series(1, 3000) n"""
        )
    assert not (await purge(router)).done
    with pytest.raises(MeshError) as caught:
        await router.prepare(2)
    assert caught.value.reason is Reason.CONFLICT
    assert (await purge(router)).done
    assert await counted(world, router) == (0, 0)
    assert await router.prepare(1) == 1


async def test_PurgeTenant__of_the_tenant_before_leaves_the_one_that_was_created_anew(world: World) -> None:
    router = await world.router()
    await router.prepare(3, max_requests_per_minute=9)
    answer = await purge(router, 3)
    assert (answer.done, answer.deleted_row_count) == (True, 1)
    for stale in (2, 3):  # Late purges of the earlier tenant.
        with pytest.raises(MeshError) as caught:
            await router.prepare(stale)
        assert caught.value.reason is Reason.CONFLICT
    assert await router.prepare(4, max_requests_per_minute=1) == 4
    assert (await router.generate(world.ref("one"))).text == "one"
    kept = await counted(world, router)
    for late in (1, 3):
        answer = await purge(router, late)
        assert (answer.done, answer.deleted_row_count) == (True, 0)
    assert await counted(world, router) == kept
    assert (await router.generate(world.ref("one"))).refused.reason is Reason.BUDGET_EXCEEDED
    assert (await purge(router, 4)).deleted_row_count == sum(kept)
    assert (await purge(router, 3)).done
    assert await counted(world, router) == (0, 0)


async def test_PurgeTenant__an_unfinished_late_purge_does_not_block_the_tenant(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await world.router()
    monkeypatch.setattr(purge_tenant, "_PAGE_ROWS", 0)
    assert not (await purge(router, 3)).done
    with pytest.raises(MeshError) as caught:
        await router.prepare(3)
    assert caught.value.reason is Reason.CONFLICT
    assert await router.prepare(4) == 4


async def test_PurgeTenant__stops_if_the_tenant_is_created_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await world.router()
    await router.prepare(3)
    lock_purge, reached, go_on = tenants.lock_purge, asyncio.Event(), asyncio.Event()

    async def held_up(connection: Connection, tenant_id: str, settings_version: int) -> bool:
        if not reached.is_set():
            reached.set()
            await go_on.wait()
        return await lock_purge(connection, tenant_id, settings_version)

    monkeypatch.setattr(tenants, "lock_purge", held_up)
    late = asyncio.create_task(purge(router, 3))
    await asyncio.wait_for(reached.wait(), 20)
    assert (await purge(router, 3)).done
    await router.prepare(4, max_requests_per_minute=1)
    assert (await router.generate(world.ref("one"))).text == "one"
    kept = await counted(world, router)
    go_on.set()
    assert (await late).done
    assert await counted(world, router) == kept


async def test_PurgeTenant__keeps_the_cooldowns_of_the_mesh(world: World) -> None:
    world.provider.on("one", BROKEN)
    router = await world.router()
    await router.generate(world.ref("one"), strict=True)
    resting = await router.explain(world.ref("one"))
    await purge(router)
    assert await router.explain(world.ref("one")) == resting
    assert ("one", "READY") not in resting


async def test_PurgeTenant__is_for_the_session_service(world: World) -> None:
    router = await world.router()
    for token in ("", router.operator):
        with pytest.raises(MeshError) as caught:
            await router.call("PurgeTenant", pb.PurgeTenantRequest(), token)
        assert caught.value.reason is Reason.CALLER_NOT_ALLOWED


@pytest.mark.parametrize(("others", "size"), [(1, 100), (50, 20), (1000, 1)])
async def test_a_page_of_a_purge_reads_a_page_whatever_the_planner_believes(
    world: World, others: int, size: int
) -> None:
    """The planner expects one row, as it does for a new tenant."""
    insert = """insert into budget_periods
                select %(tenant)s, 'MINUTE', now() - n * interval '1 minute', 1, 1, 1 from generate_series(1, %(count)s) n"""
    router = await world.router()
    async with await psycopg.AsyncConnection.connect(world.dsn.owner, autocommit=True) as owner:
        await owner.execute("alter table budget_periods set (autovacuum_enabled = false)")
        await owner.execute("truncate budget_periods")
        for tenant, count in (*((f"other-{n}", size) for n in range(others)), (router.tenant, 5000)):
            if tenant == router.tenant:
                await owner.execute("analyze budget_periods")
            await owner.execute("select set_config('spawnmesh.tenant', %s, false)", (tenant,))
            await owner.execute(insert, {"tenant": tenant, "count": count})
    read = "select pg_stat_get_xact_tuples_returned('budget_periods_pkey'::regclass) as count"
    async with open_database(world.dsn.app, name="test", max_connections=1) as database:
        for count in (2000, 2000, 1000, 0):
            async with database.transaction(router.tenant) as connection:
                before = (await (await connection.execute(read)).fetchone() or {})["count"]
                assert await budgets.purge_periods(connection, router.tenant, 2000) == count
                after = (await (await connection.execute(read)).fetchone() or {})["count"]
                assert after - before <= 3 * 2000
    async with await psycopg.AsyncConnection.connect(world.dsn.owner, autocommit=True) as owner:
        await owner.execute("truncate budget_periods")
        await owner.execute("alter table budget_periods reset (autovacuum_enabled)")
