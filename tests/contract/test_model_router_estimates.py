"""Tokens that no provider counts, or that no answer came of, are used up all the same."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.contract.model_router_fixtures import Router, World, open_world, user
from tests.contract.model_router_provider import USAGE_CHUNK, chat, chunk, sse, tool_part

UNSAID = [part for part in chat("word " * 40) if part is not USAGE_CHUNK]  # 200 bytes: 50 tokens.


@pytest.fixture
async def world(databases: dict[str, ServiceDsn], keys: Path, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(databases["model_router"], keys, tmp_path) as opened:
        opened.provider.on("two", sse(*UNSAID))
        yield opened


async def router_with(world: World, tokens: int, config: dict[str, Any] | None = None) -> Router:
    """One that refuses once so many tokens are used up, at a millionth each: a day's budget, for a minute may end at any time."""
    config = config or world.config()
    prices = {f"{sort}_micros_per_million_tokens": 10**6 for sort in ("input", "output")}
    for model in config["models"].values():
        model |= prices
    router = await world.router(config)
    await router.prepare(1, max_spend_micros_per_day=tokens)
    return router


async def is_spent(world: World, router: Router) -> bool:
    """Asks for nothing, of a model that says nothing."""
    world.provider.on("two", sse(chunk({"role": "assistant", "content": "x"}), chunk({}, "stop")))
    answered = await router.generate(world.ref("two"), strict=True, messages=[user("")])
    assert answered.refusal is None or answered.refusal.reason is Reason.BUDGET_EXCEEDED, answered.refusal
    return answered.refusal is not None


SCHEMA = '{"a": {"description": "' + "x" * 20 + '"}}'  # 46 bytes.
DECLARED = generation_pb2.ToolDeclaration(name="t" * 100, description="x" * 254, parameters_json=SCHEMA)
TOLD: list[dict[str, Any]] = [
    {"messages": [user("x" * 400)]},
    {"messages": [user("")], "system_prompt": "x" * 400},
    {"messages": [user("")], "tools": [DECLARED]},
]


@pytest.mark.parametrize("asked", TOLD)
@pytest.mark.parametrize("more", [0, 1])
async def test_Generate__an_answer_whose_provider_does_not_count_is_estimated(
    world: World, asked: dict[str, Any], more: int
) -> None:
    router = await router_with(world, 100 + 50 + more)
    assert (await router.generate(world.ref("two"), strict=True, **asked)).refusal is None
    assert await is_spent(world, router) is not bool(more)


async def test_Generate__calls_that_no_provider_counts_are_estimated_too(world: World) -> None:
    world.provider.on("one", sse(tool_part(0, '{"path": "' + "x" * 400 + '"}', "c1", "read"), chunk({}, "tool_calls")))
    router = await router_with(world, 100)
    assert (await router.generate(world.ref("one"), strict=True, messages=[user("")])).refusal is None
    assert await is_spent(world, router)


@pytest.mark.parametrize("said", [{"reasoning_content": "Hm. " * 100}, {}])
async def test_Generate__an_answer_of_nothing_but_thoughts_is_paid_for(world: World, said: dict[str, str]) -> None:
    world.provider.on("one", sse(chunk({"role": "assistant", **said}), chunk({}, "stop"), USAGE_CHUNK))
    router = await router_with(world, 25)
    assert (await router.generate(world.ref("one"), strict=True)).refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert await is_spent(world, router)
