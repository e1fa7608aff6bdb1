"""Thinking levels, from the request or the run to the bytes that reach the provider and the
response.
"""

import secrets
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import thinking_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import (
    Answered,
    World,
    assistant,
    call_block,
    tool_result,
    user,
)
from tests.support.model_router.provider import BROKEN, anthropic_answer, chat, named_sse, raw_sse, sse
from tests.support.model_router.runner import carry, queue
from tests.support.runner.scripted_mesh import ScriptedMesh

NOTHING, OFF, _, LOW, MEDIUM, HIGH = thinking_pb2.ThinkingLevel.values()
GEMINI = (
    'data: {"candidates":[{"content":{"role":"model","parts":[{"text":"Weigh it.","thought":true},{"text":"ok"}]},'
    '"finishReason":"STOP","index":0}]}\r\n\r\n'
)


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("one", sse(*chat("one")))
    world.provider.on("two", sse(*chat("two")))
    world.provider.on("claude", named_sse(*anthropic_answer(stop="end_turn")))
    return world


def thinkers(world: World) -> dict[str, Any]:
    """Configure `one` with efforts, `claude` with budgets and `two` without thinking."""
    config = world.config()
    config["models"][world.ref("one")]["thinking"] = {"low": "low", "high": "xhigh"}
    config["models"][f"{world.anthropic}/claude"]["thinking"] = {"off": 0, "low": 1024, "high": 2048}
    return config


def started(answered: Answered) -> list[int]:
    """Return the level that each attempt sent."""
    return [event.attempt_started.thinking for event in answered.events if event.HasField("attempt_started")]


async def test_Generate__each_candidate_gets_its_own_setting(world: World) -> None:
    world.provider.on("one", BROKEN)
    router = await world.router(thinkers(world))
    answered = await router.generate(world.ref("one"), f"{world.anthropic}/claude", thinking=MEDIUM)
    first, second = world.provider.bodies
    assert first["reasoning_effort"] == "low"
    assert second["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    assert started(answered) == [LOW, LOW]
    assert answered.completion.thinking == LOW
    kinds = [block.WhichOneof("block") for block in answered.completion.message.content]
    assert kinds == ["thinking", "thinking", "text", "tool_call"]


async def test_Generate__a_model_without_a_setting_is_called_anyway(world: World) -> None:
    router = await world.router(thinkers(world))
    answered = await router.generate(world.ref("two"), thinking=HIGH)
    assert answered.text == "two"
    assert "reasoning_effort" not in world.provider.bodies[0]
    assert (started(answered), answered.completion.thinking) == ([NOTHING], NOTHING)


async def test_Generate__without_a_level_no_setting_is_sent(world: World) -> None:
    router = await world.router(thinkers(world))
    answered = await router.generate(world.ref("one"))
    assert (await router.generate(f"{world.anthropic}/claude")).completion.thinking == NOTHING
    assert answered.completion.thinking == NOTHING
    assert not any(key in body for body in world.provider.bodies for key in ("reasoning_effort", "thinking"))


async def test_Generate__a_budget_gives_way_to_the_output_limit(world: World) -> None:
    router, claude = await world.router(thinkers(world)), f"{world.anthropic}/claude"
    cut = await router.generate(claude, thinking=HIGH, max_output_token_count=2500)
    none = await router.generate(claude, thinking=HIGH, max_output_token_count=2000)
    off = await router.generate(claude, thinking=OFF, max_output_token_count=10)
    assert [body.get("thinking") for body in world.provider.bodies] == [
        {"type": "enabled", "budget_tokens": 1476},
        None,
        {"type": "disabled"},
    ]
    assert [one.completion.thinking for one in (cut, none, off)] == [HIGH, NOTHING, OFF]


async def test_Generate__a_turn_that_another_model_began_goes_on_without_a_budget(world: World) -> None:
    router, claude = await world.router(thinkers(world)), f"{world.anthropic}/claude"
    block = call_block("call_1", "read", '{"type":"toolCall","id":"call_1","name":"read","arguments":{}}')
    messages = [user("go"), assistant(block), tool_result("call_1", "text")]
    within = await router.generate(claude, messages=messages, thinking=HIGH)
    behind = await router.generate(
        claude, messages=[*messages, assistant("done"), user("more")], thinking=HIGH
    )
    assert (within.completion.thinking, behind.completion.thinking) == (NOTHING, HIGH)
    assert ["thinking" in body for body in world.provider.bodies] == [False, True]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (2048, {"thinking_budget": 2048, "include_thoughts": True}),
        ("high", {"thinking_level": "HIGH", "include_thoughts": True}),
    ],
)
async def test_Generate__gemini_gets_a_setting_and_sends_its_thoughts(
    world: World, value: int | str, said: dict[str, Any]
) -> None:
    name, config = f"g{secrets.token_hex(4)}", world.config()
    config["providers"][name] = {
        "kind": "gemini",
        "base_url": world.provider.base_url,
        "credentials": ["env:KEY"],
    }
    config["models"][f"{name}/flash"] = {
        "context_window": 9000,
        "max_output": 8192,
        "thinking": {"high": value},
    }
    world.provider.on("flash", raw_sse(GEMINI))
    router = await world.router(config)
    answered = await router.generate(f"{name}/flash", thinking=HIGH)
    told = world.provider.bodies[0]["generationConfig"]["thinkingConfig"]
    assert told == said
    [text, thought] = answered.completion.message.content
    assert (text.text.text, thought.thinking.text) == ("ok", "Weigh it.")


async def test_Generate__a_level_that_no_contract_has_is_refused(world: World) -> None:
    router = await world.router(thinkers(world))
    refused = (await router.generate(world.ref("one"), thinking=99)).refused
    assert refused.reason is Reason.INVALID_REQUEST


async def test_ExplainRoute__returns_the_level_of_each(world: World) -> None:
    router = await world.router(thinkers(world))
    request = pb.GenerateRequest(
        model=world.ref("one"),
        fallback_models=[f"{world.anthropic}/claude", world.ref("two")],
        messages=[user("hello")],
        thinking=OFF,
    )
    explained = await router.call("ExplainRoute", pb.ExplainRouteRequest(request=request))
    assert [one.thinking for one in explained.candidates] == [LOW, OFF, NOTHING]


async def test_ListModels__lists_the_levels(world: World) -> None:
    router = await world.router(thinkers(world))
    models = {info.model: info for info in (await router.call("ListModels", pb.ListModelsRequest())).models}
    assert list(models[world.ref("one")].thinking_levels) == [LOW, HIGH]
    assert list(models[f"{world.anthropic}/claude"].thinking_levels) == [OFF, LOW, HIGH]
    assert list(models[world.ref("two")].thinking_levels) == []


async def test_runner__what_the_spawn_chose_reaches_the_provider(
    world: World, keys: Path, tmp_path: Path
) -> None:
    mesh = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    queue(mesh, world, thinking=HIGH)
    await carry(mesh, world, keys, tmp_path, thinkers(world))
    assert [body["reasoning_effort"] for body in world.provider.bodies] == ["xhigh"]


async def test_runner__a_run_without_a_level_sends_none(world: World, keys: Path, tmp_path: Path) -> None:
    mesh = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    queue(mesh, world)
    await carry(mesh, world, keys, tmp_path, thinkers(world))
    assert "reasoning_effort" not in world.provider.bodies[0]
