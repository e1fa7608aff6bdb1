"""The rows of the spending: stored behind the calls, bounded, kept for 90 days, and purged."""

from datetime import timedelta

import psycopg
import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter

from tests.support import tenancy
from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.process import open_router_process
from tests.support.model_router.provider import chat, sse
from tests.support.model_router.spending import as_agent, put_spend, spent, stored_rows, today
from tests.support.waiting import DAY, eventually, time_left_in

pytestmark = pytest.mark.usefixtures("quick_spend")


@pytest.fixture
async def world(world: World) -> World:
    await time_left_in(DAY)
    world.provider.on("one", sse(*chat("one")))
    return world


async def test_Generate__what_was_charged_is_stored_before_a_router_stops(
    world: World, watchdog: Watchdog, fork_server: ForkServer
) -> None:
    async with open_router_process(world, watchdog, fork_server) as router:
        caller = as_agent(router.caller, "ann")
        for _ in range(3):
            assert (await caller.generate(world.ref("one"), strict=True)).text
        assert router.process is not None
        await router.process.stop(60)
        assert router.process.returncode == 0
        assert await stored_rows(world, router.tenant) == [(today(), "ann", world.ref("one"), 3)]


async def test_Generate__days_that_are_over_for_long_are_deleted(world: World) -> None:
    router = await world.router()
    for ago in (0, 89, 90, 91, 400):
        await put_spend(world, router.tenant, ago, ("ann", "p/one"), ("", "p/one"))
    await put_spend(world, f"{router.tenant}-x", 400, ("ann", "p/one"))
    assert (await router.generate(world.ref("one"), strict=True)).text

    async def kept() -> bool:
        rows = await stored_rows(world, router.tenant)
        return {day for day, *_ in rows} == {today(), today() - timedelta(days=89)} and len(rows) == 5

    await eventually(kept)
    # The rows of a tenant without calls stay until its next call, or its purge.
    assert len(await stored_rows(world, f"{router.tenant}-x")) == 1


async def test_Generate__agents_beyond_two_hundred_of_a_day_share_a_row(world: World) -> None:
    router = await world.router()
    names = [(f"agent-{number}", "p/one") for number in range(199)]
    await put_spend(world, router.tenant, 0, *names)
    await put_spend(world, router.tenant, 1, *[(f"other-{number}", "p/one") for number in range(300)])
    for agent_id in ("agent-7", "new-1"):
        assert (await as_agent(router, agent_id).generate(world.ref("one"), strict=True)).text
    await spent(router, 499 + 2)
    for agent_id in ("new-1", "new-2", "new-3", "agent-7", ""):
        assert (await as_agent(router, agent_id).generate(world.ref("one"), strict=True)).text
    await spent(router, 499 + 7)
    rows = {
        agent: count
        for day, agent, model, count in await stored_rows(world, router.tenant)
        if day == today() and model == world.ref("one")
    }
    assert rows == {"agent-7": 2, "new-1": 2, "*": 2, "": 1}


async def test_Generate__no_call_waits_for_the_rows_and_nothing_is_lost_meanwhile(world: World) -> None:
    world.database_timeout_seconds = 0.5
    router = await world.router()
    await router.prepare(1, max_spend_micros_per_day=10**9)
    await put_spend(world, router.tenant, 0, ("", world.ref("one")))
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (router.tenant,))
        await connection.execute("select from spend_days for update")
        for _ in range(3):
            assert (await router.generate(world.ref("one"), strict=True)).text
        await eventually(lambda: blocked(world))
        # The wait for the lock times out, and opens no circuit breaker: budgets are counted on.
        await eventually(lambda: not_blocked(world))
        assert (await router.generate(world.ref("one"), strict=True)).text
    assert await spent(router, 1 + 4) == [("", "one", 5, 1)]


async def blocked(world: World) -> bool:
    """Return whether a transaction of the service waits for a lock."""
    async with await psycopg.AsyncConnection.connect(world.dsn.owner) as connection:
        return (await connection.execute("select from pg_locks where not granted")).rowcount > 0


async def not_blocked(world: World) -> bool:
    return not await blocked(world)


async def test_PurgeTenant__deletes_the_spending_and_none_is_stored_for_the_purged(world: World) -> None:
    router = await world.router()
    other = await router.for_tenant(f"{router.tenant}-x")
    stale = await world.router(tenant=router.tenant, is_prepared=False)
    for caller in (router, other, stale):
        assert (await caller.generate(world.ref("one"), strict=True)).text
    await spent(router, 2)
    await spent(other, 1)
    # The calls of this moment are not stored yet when the tenant is purged.
    for caller in (router, stale):
        assert (await caller.generate(world.ref("one"), strict=True)).text
    assert (await purge(router)).done
    assert await stored_rows(world, router.tenant) == []

    async def is_unknown(caller: Router) -> bool:
        answered = await caller.generate(world.ref("one"), strict=True)
        return answered.refusal is not None and answered.refusal.reason is Reason.UNKNOWN_TENANT

    for caller in (router, stale):
        await eventually(lambda caller=caller: is_unknown(caller))
    # The sums that replicas still had are not stored behind the purge: they store the other's next call.
    for replica in (other, await stale.for_tenant(other.tenant)):
        assert (await replica.generate(world.ref("one"), strict=True)).text
    await spent(other, 3)
    assert await stored_rows(world, router.tenant) == []


async def purge(router: Router) -> tenancy.Purged:
    with use_token(TokenMinter("session", router.keys / "session.pem").service_token(router.tenant)):
        return await tenancy.purge(router.peer, 0)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param("'t', now(), 'ann', 'p/one', -1, 0, 0, 0, 0, 0", id="negative-count"),
        pytest.param("'t', now(), 'ann', 'p/one', 1, 0, 0, 0, 0, -1", id="negative-cost"),
        pytest.param("'t', now(), repeat('a', 64), 'p/one', 1, 0, 0, 0, 0, 0", id="long-agent"),
        pytest.param("'t', now(), 'ann', 'one', 1, 0, 0, 0, 0, 0", id="model-without-provider"),
        pytest.param("'other', now(), 'ann', 'p/one', 1, 0, 0, 0, 0, 0", id="other-tenant"),
    ],
)
async def test_row_that_makes_no_sense_is_refused(world: World, row: str) -> None:
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute("set local spawnmesh.tenant = 't'")
        with pytest.raises((psycopg.errors.CheckViolation, psycopg.errors.InsufficientPrivilege)):
            await connection.execute(f"insert into spend_days values ({row})".encode())
