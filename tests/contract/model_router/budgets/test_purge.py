"""PurgeTenant: the policy and the usage are deleted, and stay so until the tenant is
created again.
"""

import asyncio

import psycopg
import pytest
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_model_router.store import budgets
from spawnmesh_postgres.database import open_database
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter

from tests.support import tenancy
from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.provider import chat, openai_error, sse
from tests.support.model_router.spending import spent
from tests.support.waiting import MINUTE, eventually, time_left_in

pytestmark = pytest.mark.usefixtures("quick_spend")

BAD_KEY = openai_error(401, "Incorrect API key provided", "invalid_request_error", "invalid_api_key")


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("one", sse(*chat("one")))
    world.provider.on("blind", sse(*chat("blind")))
    return world


async def purge(router: Router, version: int = 0) -> tenancy.Purged:
    """Purge the tenant of this version, counted as in `Router.prepare`; 0 means any version."""
    with use_token(TokenMinter("session", router.keys / "session.pem").service_token(router.tenant)):
        return await tenancy.purge(router.peer, version and version + 1)


async def counted(world: World, router: Router) -> tuple[int, int]:
    """Return the number of rows of policies, and of usage and spending."""
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (router.tenant,))
        query = """select (select count(*) from tenant_policies),
                          (select count(*) from budget_periods) + (select count(*) from spend_days)"""
        policies, periods = await (await connection.execute(query)).fetchone() or (0, 0)
    return policies, periods


async def test_PurgeTenant__removes_policy_and_budgets_and_counts_nothing_any_more(world: World) -> None:
    first, other = await world.router(), await world.router()
    second = await world.router(tenant=first.tenant)
    await time_left_in(MINUTE)
    for router in (first, other):
        await router.prepare(
            7, max_requests_per_minute=1, blind_model_policy=routing_pb2.BLIND_MODEL_POLICY_REFUSE
        )
        assert (await router.generate(world.ref("one"))).text == "one"
    assert (await second.generate(world.ref("one"))).refused.reason is Reason.BUDGET_EXCEEDED
    await spent(first, 1)
    _, periods = await counted(world, first)
    assert periods >= 3

    answer = await purge(first)
    assert (answer.done, answer.row_count) == (True, 1 + periods)
    assert await counted(world, first) == (0, 0)

    async def is_unknown() -> bool:
        return (await second.generate(world.ref("one"))).refused.reason is Reason.UNKNOWN_TENANT

    await eventually(is_unknown)
    assert (await first.generate(world.ref("one"))).refused.reason is Reason.UNKNOWN_TENANT
    assert await counted(world, first) == (0, 0)
    again = await purge(second)
    assert (again.done, again.row_count) == (True, 0)

    assert await first.prepare(1, max_requests_per_minute=5) == 1
    assert (await second.generate(world.ref("one"))).text == "one"
    policies, periods = await counted(world, first)
    assert (policies, periods >= 1) == (1, True)
    assert (await other.generate(world.ref("one"))).refused.reason is Reason.BUDGET_EXCEEDED


async def test_PurgeTenant__usage_that_is_being_stored_is_deleted_and_later_usage_is_not_stored(
    world: World,
) -> None:
    """A replica that does not know of the purge yet counts by the policy it knows."""
    router = await world.router()
    await router.prepare(1, max_tokens_per_minute=1000)
    async with open_database(world.dsn.app, name="test", max_connections=1) as database:
        async with database.transaction(router.tenant) as connection:
            await budgets.charge_usage(connection, router.tenant, 5, 5)
            purging = asyncio.create_task(purge(router))
            await eventually(lambda: blocked(world))
        assert (await purging).row_count == 1 + 2
        async with database.transaction(router.tenant) as connection:
            await budgets.charge_usage(connection, router.tenant, 5, 5)
            assert await budgets.count_requests(connection, router.tenant, 1) is None
    assert await counted(world, router) == (0, 0)


async def blocked(world: World) -> bool:
    """Return whether a transaction of the service waits for an advisory lock."""
    async with await psycopg.AsyncConnection.connect(world.dsn.owner) as connection:
        waiting = await connection.execute("select from pg_locks where locktype = 'advisory' and not granted")
        return waiting.rowcount > 0


async def test_Generate__past_usage_is_deleted(world: World) -> None:
    router = await world.router()
    await router.prepare(1, max_requests_per_minute=9)
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (router.tenant,))
        await connection.execute(
            """insert into budget_periods
               select current_setting('spawnmesh.tenant'), 'MINUTE', now() - n * interval '1 minute', 1, 1, 1
               from generate_series(1, 3000) n"""
        )
    assert (await router.generate(world.ref("one"))).text == "one"
    _, periods = await counted(world, router)
    assert periods <= 60 + 2 + 1


async def test_PurgeTenant__of_the_tenant_before_leaves_the_one_that_was_created_anew(world: World) -> None:
    router = await world.router()
    await router.prepare(3, max_requests_per_minute=9)
    answer = await purge(router, 3)
    assert (answer.done, answer.row_count) == (True, 1)
    for stale in (2, 3):  # Late purges of the earlier tenant.
        with pytest.raises(MeshError) as caught:
            await router.prepare(stale)
        assert caught.value.reason is Reason.CONFLICT
    await time_left_in(MINUTE)
    assert await router.prepare(4, max_requests_per_minute=1) == 4
    assert (await router.generate(world.ref("one"))).text == "one"
    await spent(router, 1)
    kept = await counted(world, router)
    for late in (1, 3):
        answer = await purge(router, late)
        assert (answer.done, answer.row_count) == (True, 0)
    assert await counted(world, router) == kept
    assert (await router.generate(world.ref("one"))).refused.reason is Reason.BUDGET_EXCEEDED
    assert (await purge(router, 4)).row_count == sum(kept)
    assert (await purge(router, 3)).done
    assert await counted(world, router) == (0, 0)


async def test_PurgeTenant__keeps_the_cooldowns_of_all_tenants(world: World) -> None:
    world.provider.on("one", BAD_KEY)
    router = await world.router()
    await router.generate(world.ref("one"), strict=True)
    resting = await router.explain(world.ref("one"))
    await purge(router)
    await router.prepare(1)
    assert await router.explain(world.ref("one")) == resting
    assert ("one", "READY") not in resting
