"""Routers with a budget for one tenant."""

from typing import Any

from spawnmesh_core.reasons import Reason

from tests.support.model_router.fixtures import Router, World, user
from tests.support.model_router.provider import USAGE_CHUNK, chat, chunk, sse

# 200 bytes: 50 tokens.
WITHOUT_USAGE = [part for part in chat("word " * 40) if part is not USAGE_CHUNK]


async def router_with(world: World, tokens: int, config: dict[str, Any] | None = None) -> Router:
    """Return a router with a daily budget of so many tokens, at a millionth each.

    A minute may end during the test, so the budget is not one of a minute.
    """
    config = config or world.config()
    prices = {f"{sort}_micros_per_million_tokens": 10**6 for sort in ("input", "output")}
    for model in config["models"].values():
        model |= prices
    router = await world.router(config)
    await router.prepare(1, max_spend_micros_per_day=tokens)
    return router


async def is_spent(world: World, router: Router) -> bool:
    """Return whether the budget is exhausted. The call itself uses almost nothing."""
    world.provider.on("two", sse(chunk({"role": "assistant", "content": "x"}), chunk({}, "stop")))
    answered = await router.generate(world.ref("two"), strict=True, messages=[user("")])
    assert answered.refusal is None or answered.refusal.reason is Reason.BUDGET_EXCEEDED, answered.refusal
    return answered.refusal is not None
