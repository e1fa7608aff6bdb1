"""Charged calls are listed by day, agent and model, and beside the budget of the day."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.budget_recorder import priced
from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.provider import (
    BROKEN,
    USAGE_CHUNK,
    Stall,
    anthropic_answer,
    chat,
    chunk,
    cut_after,
    named_sse,
    sse,
)
from tests.support.model_router.spending import (
    BY_AGENT,
    BY_DAY,
    BY_MODEL,
    as_agent,
    list_spend,
    spent,
    today,
)
from tests.support.waiting import DAY, eventually, time_left_in

pytestmark = pytest.mark.usefixtures("quick_spend")

ONE, TWO = 20 + 5 * 2, 10 * (20 + 5 * 2)
"""The costs of an answer: 20 tokens are read, and 5 written."""
THOUGHTS = sse(
    chunk({"role": "assistant", "reasoning_content": "Hm. " * 100}), chunk({}, "stop"), USAGE_CHUNK
)
"""An answer without output, for which the provider counts 20 and 5 tokens."""


@pytest.fixture
async def router(world: World) -> Router:
    """A router whose models have prices, within a day that goes on for a while."""
    await time_left_in(DAY)
    world.provider.on("one", sse(*chat("one")))
    world.provider.on("two", sse(*chat("two")))
    return await world.router(priced(world))


async def test_ListSpend__tells_agents_models_and_direct_calls_apart(world: World, router: Router) -> None:
    ann, ben = as_agent(router, "ann"), as_agent(router, "ben_2")
    for caller, model in [(ann, "one"), (ann, "one"), (ann, "two"), (ben, "two"), (router, "one")]:
        assert (await caller.generate(world.ref(model), strict=True)).completion
    rows = [("", "one", 1, ONE), ("ann", "one", 2, 2 * ONE), ("ann", "two", 1, TWO), ("ben_2", "two", 1, TWO)]
    assert await spent(router, 5) == rows
    by_agent = [("", "", 1, ONE), ("ann", "", 3, 2 * ONE + TWO), ("ben_2", "", 1, TWO)]
    assert await spent(router, 5, group_by=[BY_AGENT]) == by_agent
    assert await spent(router, 5, group_by=[BY_MODEL]) == [("", "one", 3, 3 * ONE), ("", "two", 2, 2 * TWO)]
    assert await spent(router, 5, group_by=[BY_DAY]) == [("", "", 5, 3 * ONE + 2 * TWO)]
    assert await spent(router, 5, group_by=[BY_MODEL, BY_AGENT]) == rows


async def test_ListSpend__row_has_its_day_and_each_sort_of_token(world: World) -> None:
    await time_left_in(DAY)
    world.provider.on("claude", named_sse(*anthropic_answer()))
    router = await world.router()
    assert (await as_agent(router, "ann").generate(f"{world.anthropic}/claude")).completion
    await spent(router, 1)
    response = await list_spend(router)
    (row,) = response.rows
    assert row.day_time.ToDatetime(UTC).date() == today()
    assert row.day_time.seconds % DAY == 0
    assert row.model == f"{world.anthropic}/claude"
    # 10 tokens read, 100 from the cache, 3 into it, 42 written.
    assert (row.input_token_count, row.output_token_count) == (113, 42)
    assert (row.cache_read_token_count, row.cache_write_token_count) == (100, 3)
    assert (row.cost_micros, response.currency) == (0, "USD")
    (total,) = (await list_spend(router, group_by=[BY_MODEL])).rows
    assert not total.HasField("day_time")
    assert total.input_token_count == 113


async def test_ListSpend__failed_answers_that_cost_something_count_for_their_own_model(
    world: World, router: Router
) -> None:
    ann = as_agent(router, "ann")
    world.provider.on("one", THOUGHTS)
    assert (await ann.generate(world.ref("one"), world.ref("two"))).text == "two"
    world.provider.on("two", cut_after(chunk({"content": "x" * 40})))
    assert (await ann.generate(world.ref("two"), strict=True)).refused.reason is Reason.STREAM_BROKEN
    # A provider that refuses charges nothing.
    world.provider.on("one", BROKEN)
    assert (await ann.generate(world.ref("one"), strict=True)).refusal
    # 2 tokens of `hello` and 10 of the text, by the estimate.
    assert await spent(router, 3) == [("ann", "one", 1, ONE), ("ann", "two", 2, TWO + 10 * (2 + 10 * 2))]


async def test_ListSpend__call_that_its_caller_abandons_counts(world: World, router: Router) -> None:
    stall = Stall((chunk({"role": "assistant", "content": "x" * 40}),))
    world.provider.on("one", stall)
    await as_agent(router, "ann").hang_up_after(2, world.ref("one"), stall.reached.wait)
    assert await spent(router, 1) == [("ann", "one", 1, 2 + 10 * 2)]


async def test_ListSpend__tenant_sees_its_own_spending_alone(world: World, router: Router) -> None:
    other = await router.for_tenant(f"{router.tenant}-x")
    assert (await router.generate(world.ref("one"), strict=True)).text
    assert await spent(router, 1)
    assert not (await list_spend(other)).rows
    assert (await other.generate(world.ref("two"), strict=True)).text
    assert await spent(other, 1) == [("", "two", 1, TWO)]
    assert await spent(router, 1) == [("", "one", 1, ONE)]


async def test_ListSpend__calls_of_two_replicas_are_one_sum(world: World, router: Router) -> None:
    second = await world.router(priced(world), tenant=router.tenant, is_prepared=False)
    for replica in (router, second):
        assert (await replica.generate(world.ref("one"), strict=True)).text
    assert await spent(router, 2) == await spent(second, 2) == [("", "one", 2, 2 * ONE)]


async def test_ListSpend__budget_of_the_day_has_its_limit_and_what_counts_against_it(
    world: World, router: Router
) -> None:
    assert not (await list_spend(router)).HasField("budget")
    await router.prepare(1, max_requests_per_minute=1000)
    assert not (await list_spend(router)).HasField("budget")
    limit = 10**6
    await router.prepare(2, max_spend_micros_per_day=limit)
    budget = (await list_spend(router)).budget
    assert (budget.limit_micros, budget.spent_micros, budget.reserved_micros) == (limit, 0, 0)
    assert 0 < budget.renew_time.ToDatetime(UTC).timestamp() - datetime.now(UTC).timestamp() <= DAY
    assert (await router.generate(world.ref("one"), strict=True)).text
    assert (await list_spend(router)).budget.spent_micros == ONE


async def test_ListSpend__budget_shows_what_calls_in_progress_have_reserved(
    world: World, router: Router
) -> None:
    await router.prepare(1, max_spend_micros_per_day=10**6)
    world.provider.on("one", Stall((chunk({"role": "assistant", "content": "x"}),)))

    async def look() -> None:
        # The largest cost of a call: 1,000 tokens are read, and 100 written.
        assert (await list_spend(router)).budget.reserved_micros >= 1_000 + 100 * 2

    await router.hang_up_after(2, world.ref("one"), look)

    async def is_released() -> bool:
        return (await list_spend(router)).budget.reserved_micros == 0

    await eventually(is_released)


async def test_Generate__agent_is_that_of_the_token_and_nobody_can_name_another(
    world: World, router: Router
) -> None:
    ann = as_agent(router, "ann")
    assert (await ann.generate(world.ref("one"), strict=True, agent_id="ann")).text
    nameless = as_agent(router, "")
    for caller, named in [(ann, "ben"), (router, "ben"), (nameless, "ben")]:
        refused = (await caller.generate(world.ref("one"), strict=True, agent_id=named)).refused
        assert refused.reason is Reason.NOT_FOUND
    malformed = (await router.generate(world.ref("one"), strict=True, agent_id="*")).refused
    assert malformed.reason is Reason.INVALID_REQUEST
    minter = TokenMinter("transcript", router.keys / "transcript.pem")
    service = replace(router, token=minter.service_token(router.tenant))
    assert (await service.generate(world.ref("one"), strict=True, agent_id="ben")).text
    assert (await service.generate(world.ref("one"), strict=True)).text
    rows = [("", "one", 1, ONE), ("ann", "one", 1, ONE), ("ben", "one", 1, ONE)]
    assert await spent(router, 3) == rows


async def test_ListSpend__readers_may_and_runs_may_not(router: Router) -> None:
    minter = TokenMinter("client", router.keys / "client.pem")
    reader = minter.client_token(router.tenant, "ann", 600, role=ClientRole.READER)
    assert await router.call("ListSpend", pb.ListSpendRequest(), token=reader) == pb.ListSpendResponse(
        currency="USD"
    )
    for token in (as_agent(router, "ann").token, router.operator):
        with pytest.raises(MeshError) as refusal:
            await router.call("ListSpend", pb.ListSpendRequest(), token=token)
        assert refusal.value.reason is Reason.CALLER_NOT_ALLOWED


async def test_ListSpend__tenant_that_was_not_prepared_is_unknown(world: World) -> None:
    router = await world.router(is_prepared=False)
    with pytest.raises(MeshError) as refusal:
        await list_spend(router)
    assert refusal.value.reason is Reason.UNKNOWN_TENANT
