"""The session service is away: no call begins that may be over a budget, and no usage is lost."""

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.model_router.budget_recorder import (
    BudgetRecorder,
    away,
    open_budget_recorder,
    priced,
    refusing,
)
from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.provider import chat, sse
from tests.support.waiting import eventually


@pytest.fixture
async def budgets(keys: Path) -> AsyncIterator[BudgetRecorder]:
    async with open_budget_recorder(keys) as recorder:
        yield recorder


@pytest.fixture
async def router(world: World, budgets: BudgetRecorder) -> Router:
    """A router as a run with a budget calls it. Its model answers with 20 and 5 tokens."""
    world.provider.on("one", sse(*chat("one")))
    return await budgets.router(world, priced(world))


async def test_Generate__session_service_that_is_away_admits_nothing(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    await budgets.stop()
    refused = (await router.generate(world.ref("one"), strict=True, timeout=120)).refused
    assert refused.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert refused.facts["dependency"] == "session"
    assert refused.retry_after_seconds
    assert world.provider.asked("one") == 0
    without = replace(router, token=budgets.run_token(router.tenant, has_budget=False))
    assert (await without.generate(world.ref("one"), strict=True)).text == "one"
    await budgets.start()

    async def is_admitted() -> bool:
        return (await router.generate(world.ref("one"), strict=True)).refusal is None

    await eventually(is_admitted)


async def test_Generate__router_without_a_session_service_names_the_setting(world: World) -> None:
    world.provider.on("one", sse(*chat("one")))
    router = await world.router(priced(world))
    recorder = BudgetRecorder(world.keys, world.stack)
    run = replace(router, token=recorder.run_token(router.tenant))
    refused = (await run.generate(world.ref("one"), strict=True)).refused
    assert refused.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert "MODEL_ROUTER_SESSION_TARGET" in refused.message
    assert world.provider.asked("one") == 0
    without = replace(router, token=recorder.run_token(router.tenant, has_budget=False))
    assert (await without.generate(world.ref("one"), strict=True)).text == "one"


@pytest.mark.parametrize("ending", ["refused", "in conflict", "silent"])
async def test_Generate__admission_whose_answer_was_lost_is_repeated_with_the_same_id(
    world: World, budgets: BudgetRecorder, router: Router, ending: str
) -> None:
    held = asyncio.Event()

    async def lose() -> None:
        budgets.on_admit = None
        if ending == "refused":
            raise away()
        if ending == "in conflict":
            raise MeshError(Reason.CONFLICT, "another call locks the budget")
        await held.wait()

    budgets.on_admit = lose
    assert (await router.generate(world.ref("one"), strict=True, timeout=120)).text == "one"
    held.set()
    first, second = budgets.admitted
    assert first == second
    assert [one.call_id for one in budgets.recorded] == [first.call_id]


async def test_Generate__admission_that_stays_uncertain_is_recorded_as_nothing(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    budgets.on_admit = refusing(away())
    refused = (await router.generate(world.ref("one"), strict=True, timeout=120)).refused
    assert refused.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert world.provider.asked("one") == 0
    assert len({one.call_id for one in budgets.admitted}) == 1
    assert len(budgets.admitted) == 3
    assert [(one.call_id, one.token_count, one.cost_micros) for one in budgets.recorded] == [
        (budgets.admitted[0].call_id, 0, 0)
    ]


async def test_Generate__caller_who_leaves_during_an_admission_that_fails_leaves_no_error_behind(
    world: World, budgets: BudgetRecorder, router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    reached, opened = asyncio.Event(), asyncio.Event()

    async def hold_and_fail() -> None:
        reached.set()
        await opened.wait()
        raise away()

    budgets.on_admit = hold_and_fail
    call = asyncio.create_task(router.generate(world.ref("one"), strict=True, timeout=120))
    await asyncio.wait_for(reached.wait(), 60)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    opened.set()
    await eventually(lambda: budgets.recorded)
    await world.stack.aclose()
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_Generate__usage_is_recorded_when_the_session_service_is_back(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    answer = sse(*chat("one"))

    async def stop_and_answer(request: web.Request) -> web.StreamResponse:
        await budgets.stop()
        return await answer(request)

    world.provider.on("one", stop_and_answer)
    assert (await router.generate(world.ref("one"), strict=True, timeout=120)).text == "one"
    assert not budgets.recorded
    await budgets.start()
    await eventually(lambda: budgets.recorded)
    assert budgets.only == (25, 30)


async def test_Generate__record_whose_answer_was_lost_is_repeated_as_it_was(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    budgets.on_record = refusing(away(), times=2)
    assert (await router.generate(world.ref("one"), strict=True, timeout=120)).text == "one"
    await eventually(lambda: len(budgets.recorded) == 3)
    assert {(one.call_id, one.token_count, one.cost_micros) for one in budgets.recorded} == {
        (budgets.admitted[0].call_id, 25, 30)
    }


async def test_Generate__router_that_stops_records_what_is_left(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    budgets.on_record = refusing(away(), times=2)
    assert (await router.generate(world.ref("one"), strict=True, timeout=120)).text == "one"
    await world.stack.aclose()
    assert len(budgets.recorded) == 3


async def test_Generate__router_that_stops_does_not_wait_for_the_next_try(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    budgets.on_record = refusing(away())
    assert (await router.generate(world.ref("one"), strict=True, timeout=120)).text == "one"
    # By then a try waits for longer than a router takes to stop.
    await eventually(lambda: len(budgets.recorded) >= 6)
    accepted: list[int] = []

    async def accept() -> None:
        accepted.append(len(budgets.recorded))

    budgets.on_record = accept
    await world.stack.aclose()
    assert len(accepted) == 1


@pytest.mark.parametrize("reason", [Reason.NOT_FOUND, Reason.UNKNOWN_TENANT])
async def test_Generate__record_that_is_refused_for_good_is_not_repeated(
    world: World, budgets: BudgetRecorder, router: Router, reason: Reason
) -> None:
    budgets.on_record = refusing(MeshError(reason, "it is gone"))
    assert (await router.generate(world.ref("one"), strict=True, timeout=120)).text == "one"
    await world.stack.aclose()
    assert len(budgets.recorded) == 1


async def test_Generate__router_stops_although_the_session_service_stays_away(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    budgets.on_record = refusing(away())
    assert (await router.generate(world.ref("one"), strict=True, timeout=120)).text == "one"
    await asyncio.wait_for(world.stack.aclose(), 60)
    assert len(budgets.recorded) > 1
    assert len({one.call_id for one in budgets.recorded}) == 1
