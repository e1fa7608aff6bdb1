"""The metrics of calls of models: time, tokens and cost, by provider and model."""

from typing import Any

from tests.support.measured import Measured
from tests.support.model_router.fixtures import World
from tests.support.model_router.provider import BROKEN, chat, sse
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
