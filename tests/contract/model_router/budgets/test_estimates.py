"""Tokens that the provider does not count, or that produced no answer, are charged by an
estimate.
"""

from typing import Any

import pytest
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_core.reasons import Reason

from tests.support.model_router.budgets import WITHOUT_USAGE, is_spent, router_with
from tests.support.model_router.fixtures import World, user
from tests.support.model_router.provider import USAGE_CHUNK, chunk, sse, tool_part


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*WITHOUT_USAGE))
    return world


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
    world.provider.on(
        "one", sse(tool_part(0, '{"path": "' + "x" * 400 + '"}', "c1", "read"), chunk({}, "tool_calls"))
    )
    router = await router_with(world, 100)
    assert (await router.generate(world.ref("one"), strict=True, messages=[user("")])).refusal is None
    assert await is_spent(world, router)


@pytest.mark.parametrize("said", [{"reasoning_content": "Hm. " * 100}, {}])
async def test_Generate__an_answer_of_nothing_but_thoughts_is_paid_for(
    world: World, said: dict[str, str]
) -> None:
    world.provider.on("one", sse(chunk({"role": "assistant", **said}), chunk({}, "stop"), USAGE_CHUNK))
    router = await router_with(world, 25)
    assert (
        await router.generate(world.ref("one"), strict=True)
    ).refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert await is_spent(world, router)
