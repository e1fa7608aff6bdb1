"""Usage has its cost: that which the budget of the tenant is charged, by the prices of the model."""

from typing import Any

import pytest
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_core.reasons import Reason

from tests.support.model_router.budget_recorder import priced
from tests.support.model_router.budgets import WITHOUT_USAGE
from tests.support.model_router.fixtures import World, user
from tests.support.model_router.provider import (
    BROKEN,
    USAGE_CHUNK,
    Answering,
    anthropic_answer,
    chat,
    chunk,
    cut_after,
    named_sse,
    sse,
)

THOUGHTS = sse(
    chunk({"role": "assistant", "reasoning_content": "Hm. " * 100}), chunk({}, "stop"), USAGE_CHUNK
)
"""An answer without output, for which the provider counts 20 and 5 tokens."""
HELLO = [user("hello, " * 40)]  # 280 bytes: 70 tokens by the estimate.
SAID = "x" * 40  # 10 tokens.


@pytest.mark.parametrize(
    ("answering", "read", "written"),
    [
        pytest.param(sse(*chat("one")), 20, 5, id="counted"),
        # `WITHOUT_USAGE` says 200 bytes.
        pytest.param(sse(*WITHOUT_USAGE), 70, 50, id="estimated"),
    ],
)
async def test_Generate__cost_of_an_answer_is_what_the_tenant_is_charged(
    world: World, answering: Answering, read: int, written: int
) -> None:
    world.provider.on("one", answering)
    cost = read + 2 * written
    for limit, refusal in [(cost, Reason.BUDGET_EXCEEDED), (cost + 1, None)]:
        router = await world.router(priced(world, price_version="2030-01"))
        await router.prepare(1, max_spend_micros_per_day=limit)
        usage = (
            await router.generate(world.ref("one"), strict=True, messages=HELLO)
        ).completion.message.usage
        assert (usage.input_token_count, usage.output_token_count) == (read, written)
        assert (usage.cost_micros, usage.price_version) == (cost, "2030-01")
        again = (await router.generate(world.ref("one"), strict=True, messages=HELLO)).refusal
        assert (again.reason if again else None) is refusal


async def test_Generate__cost_follows_the_price_of_each_sort_of_token(world: World) -> None:
    world.provider.on("claude", named_sse(*anthropic_answer()))
    config = world.config()
    prices = {"input": 10, "output": 50, "cache_read": 1, "cache_write": 12}
    config["models"][f"{world.anthropic}/claude"] |= {
        f"{sort}_micros_per_million_tokens": price * 10**6 for sort, price in prices.items()
    }
    router = await world.router(config)
    usage = (await router.generate(f"{world.anthropic}/claude")).completion.message.usage
    # 10 tokens read, 100 from the cache, 3 into it, 42 written.
    assert usage.cost_micros == 10 * 10 + 100 * 1 + 3 * 12 + 42 * 50


async def test_Generate__model_without_prices_costs_nothing(world: World) -> None:
    world.provider.on("one", sse(*chat("one")))
    usage = (await (await world.router()).generate(world.ref("one"))).completion.message.usage
    assert (usage.input_token_count, usage.cost_micros, usage.price_version) == (20, 0, "")


async def test_Generate__failed_attempts_cost_what_their_own_models_cost(world: World) -> None:
    world.provider.on("one", cut_after(chunk({"role": "assistant", "reasoning_content": SAID})))
    world.provider.on("two", THOUGHTS)
    world.provider.on("claude", named_sse(*anthropic_answer()))
    router = await world.router(priced(world, price_version="v7"))
    chain = [world.ref("one"), world.ref("two"), f"{world.anthropic}/claude"]
    completion = (await router.generate(*chain, messages=HELLO)).completion
    failed = completion.failed_usage
    assert (failed.input_token_count, failed.output_token_count) == (70 + 20, 10 + 5)
    assert (failed.cost_micros, failed.price_version) == ((70 + 10 * 2) + 10 * (20 + 5 * 2), "v7")
    assert completion.message.usage.cost_micros == 0


@pytest.mark.parametrize(
    ("answers", "reason", "cost"),
    [
        pytest.param(
            (cut_after(chunk({"content": SAID})), BROKEN), Reason.STREAM_BROKEN, "90", id="broken-stream"
        ),
        pytest.param((THOUGHTS, THOUGHTS), Reason.ALL_CANDIDATES_FAILED, "330", id="no-answer"),
        pytest.param(
            (THOUGHTS, cut_after(chunk({"content": SAID}))),
            Reason.STREAM_BROKEN,
            "930",
            id="broken-stream-after-no-answer",
        ),
        pytest.param((BROKEN, BROKEN), Reason.ALL_CANDIDATES_FAILED, None, id="nothing-used"),
    ],
)
async def test_Generate__error_has_the_cost_of_its_attempts(
    world: World, answers: tuple[Answering, Answering], reason: Reason, cost: str | None
) -> None:
    world.provider.on("one", answers[0])
    world.provider.on("two", answers[1])
    router = await world.router(priced(world))
    chain: dict[str, Any] = {"fallbacks": pb.Fallbacks(models=[world.ref("two")]), "messages": HELLO}
    refused = (await router.generate(world.ref("one"), **chain)).refused
    assert refused.reason is reason
    assert refused.facts.get("used_cost_micros") == cost


@pytest.mark.parametrize("answering", [sse(*chat("one")), sse(*WITHOUT_USAGE)], ids=["counted", "estimated"])
async def test_Generate__span_of_an_answer_has_its_cost(world: World, answering: Answering) -> None:
    world.provider.on("one", BROKEN)
    world.provider.on("two", answering)
    router = await world.router(priced(world))
    completion = (await router.generate(world.ref("one"), world.ref("two"))).completion
    spans = {
        (span.attributes or {})["gen_ai.request.model"]: dict(span.attributes or {})
        for span in router.spans.get_finished_spans()
        if span.name.startswith("chat ")
    }
    assert spans["two"]["spawnmesh.model_router.cost"] == completion.message.usage.cost_micros > 0
    assert "spawnmesh.model_router.cost" not in spans["one"]


async def test_ListModels__lists_the_prices(world: World) -> None:
    config = priced(world, currency="EUR", price_version="2030-01")
    config["models"][world.ref("two")]["cache_read_micros_per_million_tokens"] = 7
    router = await world.router(config)
    listed = await router.call("ListModels", pb.ListModelsRequest(page_size=1))
    assert (listed.currency, listed.price_version) == ("EUR", "2030-01")
    models = {
        info.model: info.prices for info in (await router.call("ListModels", pb.ListModelsRequest())).models
    }
    assert models[world.ref("two")] == routing_pb2.ModelPrices(
        input_micros=10**7, output_micros=2 * 10**7, cache_read_micros=7, cache_write_micros=10**7
    )
    assert models[world.ref("blind")] == routing_pb2.ModelPrices()


async def test_ListModels__currency_is_that_of_the_configuration(world: World) -> None:
    listed = await (await world.router()).call("ListModels", pb.ListModelsRequest())
    assert (listed.currency, listed.price_version) == ("USD", "")
