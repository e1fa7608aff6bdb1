"""The metrics of calls of models: time, tokens and cost, by provider and model."""

from typing import Any

from tests.support.measured import Measured
from tests.support.model_router.fixtures import World
from tests.support.model_router.provider import BROKEN, chat, sse
from tests.support.model_router.spending import as_agent
from tests.support.waiting import eventually


async def test_Generate__each_call_is_timed_and_its_tokens_and_cost_are_counted_without_limits(
    world: World,
) -> None:
    world.provider.on("one", BROKEN)
    world.provider.on("two", sse(*chat("two")))
    config = world.config()
    prices = {"input_micros_per_million_tokens": 10**6, "output_micros_per_million_tokens": 2 * 10**6}
    config["models"][world.ref("two")] |= prices
    measured = Measured()
    router = await world.router(config, metrics=measured.metrics)
    usage = (await router.generate(world.ref("one"), world.ref("two"))).completion.message.usage
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": world.scripted,
    }

    def timed() -> list[tuple[dict[str, Any], Any]] | None:
        points = measured.points("gen_ai.client.operation.duration")
        return points if len(points) == 2 else None

    durations = await eventually(timed)
    assert [attributes for attributes, _ in durations] == [
        {**common, "gen_ai.request.model": "one", "error.type": "SERVER_ERROR"},
        {**common, "gen_ai.request.model": "two"},
    ]
    assert [count for _, (count, _) in durations] == [1, 1]
    assert all(0 < seconds < 600 for _, (_, seconds) in durations)
    tokens = {
        (attributes["gen_ai.request.model"], attributes["gen_ai.token.type"]): total
        for attributes, (_, total) in measured.points("gen_ai.client.token.usage")
    }
    assert usage.input_token_count > 0
    assert tokens == {
        ("two", "input"): usage.input_token_count,
        ("two", "output"): usage.output_token_count,
    }
    costs = {
        attributes["gen_ai.request.model"]: value
        for attributes, value in measured.points("spawnmesh.model_router.cost")
    }
    assert costs == {"two": usage.input_token_count + 2 * usage.output_token_count}
    assert all(
        router.tenant not in str(attributes)
        for name in ("gen_ai.client.operation.duration", "spawnmesh.model_router.cost")
        for attributes, _ in measured.points(name)
    )


async def test_Generate__tokens_and_cost_are_counted_by_class_of_the_tenant_and_by_agent(
    world: World,
) -> None:
    world.provider.on("one", sse(*chat("one")))
    config = world.config()
    config["models"][world.ref("one")] |= {"input_micros_per_million_tokens": 10**6}
    measured = Measured()
    router = await world.router(config, metrics=measured.metrics)
    await router.send_settings(2, tenant_class="premium")
    ann = as_agent(router, "ann")
    usage = (await ann.generate(world.ref("one"))).completion.message.usage
    await router.generate(world.ref("one"))
    common = {"spawnmesh.model_router.provider": world.scripted, "gen_ai.request.model": "one"}
    of_class = {**common, "spawnmesh.tenant.class": "premium"}
    assert measured.points("spawnmesh.model_router.tokens") == [
        ({**of_class, "gen_ai.token.type": "input"}, 2 * usage.input_token_count),
        ({**of_class, "gen_ai.token.type": "output"}, 2 * usage.output_token_count),
        ({**of_class, "gen_ai.token.type": "cache_read"}, 2 * usage.cache_read_token_count),
    ]
    assert measured.points("spawnmesh.model_router.cost") == [(of_class, 2 * usage.cost_micros)]
    assert measured.points("spawnmesh.model_router.agent.tokens") == [
        ({**common, "gen_ai.agent.name": name}, usage.input_token_count + usage.output_token_count)
        for name in ("ann", "none")
    ]
    assert measured.points("spawnmesh.model_router.agent.cost") == [
        ({**common, "gen_ai.agent.name": name}, usage.cost_micros) for name in ("ann", "none")
    ]
