"""Calls of runs count in the budgets of sessions: asked before a provider is called, recorded once
with all that they used.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.budget_recorder import (
    BudgetRecorder,
    open_budget_recorder,
    priced,
    refusing,
)
from tests.support.model_router.fixtures import Router, World, user
from tests.support.model_router.provider import (
    BROKEN,
    USAGE_CHUNK,
    Stall,
    chat,
    chunk,
    cut_after,
    sse,
)
from tests.support.waiting import eventually

LARGEST = 1_000 + 100 * 2
"""The most that a call of `one` costs: it reads 1,000 tokens at one and writes 100 at two."""
THOUGHTS = sse(
    chunk({"role": "assistant", "reasoning_content": "Hm. " * 100}), chunk({}, "stop"), USAGE_CHUNK
)
"""An answer without output, for which the provider counts 20 and 5 tokens."""
HELLO = [user("hello, " * 40)]  # 280 bytes: 70 tokens by the estimate.


@pytest.fixture
async def budgets(keys: Path) -> AsyncIterator[BudgetRecorder]:
    async with open_budget_recorder(keys) as recorder:
        yield recorder


@pytest.fixture
async def router(world: World, budgets: BudgetRecorder) -> Router:
    """A router as a run with a budget calls it. Its models answer with 20 and 5 tokens."""
    world.provider.on("one", sse(*chat("one")))
    world.provider.on("two", sse(*chat("two")))
    return await budgets.router(world, priced(world))


def service_token(router: Router) -> str:
    return TokenMinter("transcript", router.keys / "transcript.pem").service_token(router.tenant)


def client_token(router: Router) -> str:
    return TokenMinter("client", router.keys / "client.pem").client_token(router.tenant, "ann", 600)


async def test_Generate__call_of_a_run_is_admitted_before_and_recorded_after(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    asked: list[int] = []

    async def note() -> None:
        asked.append(world.provider.asked("one"))
        await asyncio.sleep(0.2)  # A router that did not wait would answer meanwhile.

    budgets.on_admit = budgets.on_record = note
    answered = await router.generate(world.ref("one"), strict=True, timeout=120)
    assert asked == [0, 1]
    assert budgets.only == (25, 20 + 5 * 2)
    usage = answered.completion.message.usage
    assert (usage.input_token_count + usage.output_token_count, usage.cost_micros) == budgets.only
    admitted = budgets.admitted[0]
    assert admitted.call_id.startswith("cal_")
    assert (admitted.session_id, admitted.run_id) == (budgets.session_id, budgets.run_id)
    assert admitted.epoch == 1
    assert (admitted.largest_token_count, admitted.largest_cost_micros) == (1_100, LARGEST)
    assert 120 < admitted.expires_in.ToSeconds() <= 180
    assert budgets.tenants == {router.tenant}


async def test_Generate__answer_waits_until_it_is_recorded(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    reached, opened = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await opened.wait()

    kinds: list[str | None] = []

    async def read() -> None:
        request = pb.GenerateRequest(model=world.ref("one"), strict=True, messages=HELLO)
        with use_token(router.token):
            async for answer in router.peer.stream(router.stub.Generate, request, timeout_seconds=120):
                kinds.extend(event.WhichOneof("event") for event in answer.events)

    budgets.on_record = hold
    call = asyncio.create_task(read())
    await asyncio.wait_for(reached.wait(), 60)
    await eventually(lambda: "text_delta" in kinds)
    await asyncio.sleep(0.2)  # A router that did not wait would complete the answer meanwhile.
    assert "completion" not in kinds
    opened.set()
    await call
    assert kinds[-1] == "completion"


async def test_Generate__most_of_a_chain_is_that_of_its_dearest_and_largest_candidates(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    await router.generate(world.ref("one"), world.ref("two"), max_output_token_count=10)
    admitted = budgets.admitted[0]
    assert (admitted.largest_token_count, admitted.largest_cost_micros) == (1_010, 10 * (1_000 + 10 * 2))


@pytest.mark.parametrize(("seconds", "longest"), [(300.0, 370.0), (3 * 86_400.0, 86_400.0)])
async def test_Generate__record_has_a_minute_after_the_deadline_and_a_day_at_most(
    world: World, budgets: BudgetRecorder, router: Router, seconds: float, longest: float
) -> None:
    await router.generate(world.ref("one"), strict=True, timeout=seconds)
    expires_in = budgets.admitted[0].expires_in.ToNanoseconds() / 1e9
    assert min(seconds, longest - 1) < expires_in <= longest


@pytest.mark.parametrize("kind", ["run-without-budget", "client", "service"])
async def test_Generate__call_that_counts_in_no_budget_asks_nothing(
    world: World, budgets: BudgetRecorder, router: Router, kind: str
) -> None:
    tokens = {
        "run-without-budget": budgets.run_token(router.tenant, has_budget=False),
        "client": client_token(router),
        "service": service_token(router),
    }
    other = replace(router, token=tokens[kind])
    for broken in (sse(*chat("one")), BROKEN):
        world.provider.on("one", broken)
        await other.generate(world.ref("one"), strict=True, session_id=budgets.session_id)
    assert world.provider.asked("one") == 2
    assert not budgets.requests


async def test_Generate__service_names_the_run_for_which_it_calls(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    service = replace(router, token=service_token(router))
    named = {"session_id": budgets.session_id, "run_id": budgets.run_id}
    assert (await service.generate(world.ref("one"), strict=True, **named)).text == "one"
    assert budgets.only == (25, 30)
    assert (budgets.admitted[0].session_id, budgets.admitted[0].run_id) == tuple(named.values())


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("run", {"run_id": "own"}, None),
        ("run", {"run_id": "other"}, Reason.NOT_FOUND),
        ("client", {"run_id": "own"}, Reason.NOT_FOUND),
        ("service", {"run_id": "own"}, Reason.INVALID_REQUEST),
    ],
)
async def test_Generate__run_of_a_call(
    world: World,
    budgets: BudgetRecorder,
    router: Router,
    kind: str,
    fields: dict[str, Any],
    reason: Reason | None,
) -> None:
    tokens = {"run": router.token, "client": client_token(router), "service": service_token(router)}
    run_id = budgets.run_id if fields["run_id"] == "own" else new_id(IdKind.RUN)
    answered = await replace(router, token=tokens[kind]).generate(world.ref("one"), run_id=run_id)
    assert (answered.refusal.reason if answered.refusal else None) is reason
    assert answered.refusal is None or answered.refusal.domain == "model-router.spawnmesh"
    assert len(budgets.requests) == (0 if reason else 2)


async def test_Generate__refusal_of_a_budget_passes_unchanged_and_releases_the_tenants_reservation(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    facts = {"session_id": new_id(IdKind.SESSION), "run_id": budgets.run_id, "limits": "TOKENS,COST"}
    text = "the budget of ses_1 is used up"
    budgets.on_admit = refusing(MeshError(Reason.SESSION_BUDGET_EXCEEDED, text, facts=facts))
    await router.prepare(1, max_spend_micros_per_day=LARGEST)
    refused = (await router.generate(world.ref("one"), strict=True)).refused
    assert (refused.reason, refused.message) == (Reason.SESSION_BUDGET_EXCEEDED, text)
    assert {name: refused.facts[name] for name in facts} == facts
    assert not any(name.startswith("used_") for name in refused.facts)
    assert refused.domain == "session.spawnmesh"
    assert len(budgets.requests) == 1
    assert world.provider.asked("one") == 0
    # The reservation of the refused call would leave no room.
    client = replace(router, token=client_token(router))
    assert (await client.generate(world.ref("one"), strict=True)).text == "one"


async def test_Generate__call_that_is_refused_before_is_not_admitted(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    assert (await router.generate("nowhere/none")).refused.reason is Reason.UNKNOWN_MODEL
    await router.prepare(1, max_spend_micros_per_day=1)
    assert (await router.generate(world.ref("one"), strict=True)).text == "one"
    assert (await router.generate(world.ref("one"), strict=True)).refused.reason is Reason.BUDGET_EXCEEDED
    assert budgets.only == (25, 30)


async def test_Generate__failed_attempts_are_in_the_one_record_of_the_call(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    thoughts = chunk({"role": "assistant", "reasoning_content": "x" * 40})  # 10 tokens.
    world.provider.on("one", cut_after(thoughts))
    world.provider.on("two", THOUGHTS, sse(*chat("two")))
    chain = [world.ref("one"), world.ref("two"), world.ref("one")]
    assert (await router.generate(*chain, messages=HELLO)).refused.reason is Reason.ALL_CANDIDATES_FAILED
    lost = (70 + 10) + 25, (70 + 10 * 2) + 10 * (20 + 5 * 2)
    assert budgets.only == lost


async def test_Generate__answer_after_failed_attempts_is_recorded_with_them(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    world.provider.on("one", THOUGHTS)
    completion = (await router.generate(world.ref("one"), world.ref("two"))).completion
    assert budgets.only == (25 + 25, 30 + 300)
    assert (completion.failed_usage.cost_micros, completion.message.usage.cost_micros) == (30, 300)


async def test_Generate__answer_that_breaks_is_recorded_by_its_estimate(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    said = chunk({"role": "assistant", "content": "x" * 40})
    world.provider.on("one", cut_after(said))
    refused = (await router.generate(world.ref("one"), strict=True, messages=HELLO)).refused
    assert refused.reason is Reason.STREAM_BROKEN
    assert budgets.only == (70 + 10, 70 + 10 * 2)
    assert refused.facts["used_cost_micros"] == "90"


async def test_Generate__provider_that_only_fails_is_recorded_as_nothing(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    world.provider.on("one", BROKEN)
    refused = (await router.generate(world.ref("one"), strict=True)).refused
    assert refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert "used_cost_micros" not in refused.facts
    assert budgets.only == (0, 0)


async def test_Generate__call_whose_caller_leaves_is_recorded_by_its_estimate(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    stall = Stall((chunk({"role": "assistant", "content": "x" * 200}),))
    world.provider.on("one", stall)
    await router.hang_up_after(2, world.ref("one"), stall.reached.wait)
    await eventually(lambda: budgets.recorded)
    assert budgets.only == (2 + 50, 2 + 50 * 2)  # It asked 5 bytes: "hello".


async def test_Generate__caller_who_leaves_at_the_end_is_recorded_with_what_the_provider_counted(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    reached, opened = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await opened.wait()

    budgets.on_record = hold
    await router.hang_up_after(2, world.ref("one"), reached.wait)
    opened.set()
    await eventually(lambda: world.provider.asked("one") == 1)
    assert budgets.only == (25, 30)


async def test_Generate__caller_who_leaves_during_the_admission_is_recorded_as_nothing(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    reached, opened = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await opened.wait()

    budgets.on_admit = hold
    call = asyncio.create_task(router.generate(world.ref("one"), strict=True, timeout=120))
    await asyncio.wait_for(reached.wait(), 60)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    # A record that overtook the admission would change nothing.
    await asyncio.sleep(0.2)
    assert not budgets.recorded
    opened.set()
    await eventually(lambda: budgets.recorded)
    assert budgets.only == (0, 0)
    assert world.provider.asked("one") == 0


async def test_Generate__calls_at_once_are_each_recorded(
    world: World, budgets: BudgetRecorder, router: Router
) -> None:
    opened = asyncio.Event()
    answer = sse(*chat("one"))

    async def answer_later(request: web.Request) -> web.StreamResponse:
        await opened.wait()
        return await answer(request)

    world.provider.on("one", answer_later)
    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(router.generate(world.ref("one"), strict=True, timeout=120))
        await eventually(lambda: world.provider.asked("one") == 8)
        assert (len(budgets.admitted), len(budgets.recorded)) == (8, 0)
        opened.set()
    ids = {one.call_id for one in budgets.admitted}
    assert len(ids) == 8
    assert sorted(one.call_id for one in budgets.recorded) == sorted(ids)
