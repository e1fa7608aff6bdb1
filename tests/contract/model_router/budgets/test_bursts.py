"""Budgets during bursts of calls: a tenant cannot switch off the budget of any tenant."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_model_router.operations import bulkhead
from spawnmesh_postgres.database import open_database

from tests.support.model_router.fixtures import Answered, Router, World
from tests.support.model_router.process import RouterProcess, open_router_process
from tests.support.model_router.provider import chat, sse
from tests.support.waiting import MINUTE, time_left_in


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("one", sse(*chat("one")))
    world.provider.on("two", sse(*chat("two")))
    return world


@pytest.fixture
async def process(world: World, watchdog: Watchdog, fork_server: ForkServer) -> AsyncIterator[RouterProcess]:
    async with open_router_process(world, watchdog, fork_server) as running:
        yield running


def is_refused(answered: Answered) -> bool:
    """A burst meets the rate of calls of its tenant too."""
    refusals = (Reason.BUDGET_EXCEEDED, Reason.RATE_LIMITED)
    assert answered.refusal is None or answered.refusal.reason in refusals, answered.refusal
    return answered.refusal is not None


async def test_Generate__a_burst_is_let_in_by_the_budget_and_leaves_that_of_others_on(
    world: World, process: RouterProcess
) -> None:
    hostile = process.caller
    process.tenant += "-bystander"
    bystander = process.caller
    await hostile.prepare(1, max_requests_per_minute=5)
    await bystander.prepare(1, max_requests_per_minute=1)
    for _ in range(2):
        calls = [hostile.generate(world.ref("one"), strict=True, timeout=60) for _ in range(300)]
        answers = await asyncio.gather(*calls)
        assert (
            sum(not is_refused(answered) for answered in answers) <= 10
        )  # The minute may have ended meanwhile, once.
        assert any([is_refused(await bystander.generate(world.ref("two"), strict=True)) for _ in range(3)])
    assert 5 <= world.provider.asked("one") <= 20
    log = process.config.with_suffix(".log").read_text()
    assert "budget_counted_here" not in log
    assert "usage_kept_here" not in log


@asynccontextmanager
async def held_rows(world: World, router: Router) -> AsyncIterator[None]:
    """Lock the usage of the tenant in another session for a long time."""
    async with (
        open_database(world.dsn.app, name="test", max_connections=1) as database,
        database.transaction(router.tenant) as connection,
    ):
        assert (await connection.execute("select from budget_periods for update")).rowcount > 0
        yield


async def test_Generate__a_row_that_is_locked_is_no_database_that_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulkhead, "_OPEN_SECONDS", 60.0)
    router = await world.router(world.config(), database_timeout_seconds=2.0)  # The machine may be slow.
    await time_left_in(MINUTE)
    await router.prepare(1, max_requests_per_minute=10)
    other = replace(
        await world.router(), peer=router.peer, stub=router.stub
    )  # Another tenant, at the same replica.
    await other.prepare(1, max_tokens_per_minute=25)
    assert not is_refused(await router.generate(world.ref("one"), strict=True))
    async with held_rows(world, router):
        assert not is_refused(await router.generate(world.ref("one"), strict=True))
        assert not is_refused(await other.generate(world.ref("two"), strict=True))
        assert any([is_refused(await other.generate(world.ref("two"), strict=True)) for _ in range(2)])


async def test_Generate__a_budget_that_is_used_up_is_known_without_asking_until_it_changes(
    world: World,
) -> None:
    config = world.config()
    config["models"][world.ref("one")]["input_micros_per_million_tokens"] = 10**6
    router = await world.router(config)

    async def is_spent() -> bool:
        return is_refused(await router.generate(world.ref("one"), strict=True))

    await router.prepare(1, max_spend_micros_per_day=20)  # The price of one call.
    assert [await is_spent() for _ in range(2)] == [False, True]
    async with held_rows(world, router):
        refused = (await router.generate(world.ref("one"), strict=True)).refused
    assert 0 < (refused.retry_after_seconds or 0) <= 86_400
    await router.prepare(2, max_spend_micros_per_day=40)
    assert [await is_spent() for _ in range(2)] == [False, True]
    await router.prepare(3, max_spend_micros_per_day=20)
    assert await is_spent()
