"""A tool call that the output limit or a filter cut off is never executed."""

import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import World
from tests.support.model_router.gemini import open_gemini_router, streamed
from tests.support.model_router.gemini import said as said_by_gemini
from tests.support.model_router.provider import (
    USAGE_CHUNK,
    Answering,
    chat,
    chunk,
    named_sse,
    sse,
    tool_part,
)
from tests.support.model_router.responses import called, incomplete, responses
from tests.support.model_router.responses import said as said_in_responses
from tests.support.model_router.runner import carry, queue
from tests.support.runner.scripted_mesh import ScriptedMesh

TOOLS = [generation_pb2.ToolDeclaration(name="read"), generation_pb2.ToolDeclaration(name="clean")]


def by_chat(*calls: tuple[str, str], stop: str = "length") -> Answering:
    parts = [tool_part(place, arguments, f"c{place}", name) for place, (name, arguments) in enumerate(calls)]
    return sse(chunk({"role": "assistant", "content": "ok"}), *parts, chunk({}, stop), USAGE_CHUNK)


def by_anthropic(*calls: tuple[str, str], stop: str = "max_tokens") -> Answering:
    usage = {"input_tokens": 10, "output_tokens": 1}
    message = {"id": "msg_7", "type": "message", "role": "assistant", "content": [], "model": "claude-served"}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}
    ]
    blocks: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": "ok"})
    ]
    for place, (name, arguments) in enumerate(calls):
        start = {"type": "tool_use", "id": f"c{place}", "name": name, "input": {}}
        blocks.append((start, {"type": "input_json_delta", "partial_json": arguments}))
    for place, (start, delta) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": place, "content_block": start})
        events.append({"type": "content_block_delta", "index": place, "delta": delta})
        events.append({"type": "content_block_stop", "index": place})
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 42}})
    return named_sse(*events, {"type": "message_stop"})


def by_responses(*calls: tuple[str, str], stop: str = "max_output_tokens") -> Answering:
    made = [
        called(f"c{place}", name, arguments, place=place + 1) for place, (name, arguments) in enumerate(calls)
    ]
    events = [event for call in made for event in call]
    return responses(*said_in_responses("ok"), *events, incomplete(stop))


def model_of(world: World, answering: Any) -> tuple[str, dict[str, Any]]:
    """Return the model with this wire format, and its configuration."""
    config = world.config()
    if answering is by_anthropic:
        return f"{world.anthropic}/claude", config
    if answering is by_responses:
        config["models"][world.ref("one")]["api"] = "responses"
    return world.ref("one"), config


@pytest.mark.parametrize("answering", [by_chat, by_anthropic, by_responses])
@pytest.mark.parametrize(
    ("calls", "made"),
    [
        ([("clean", "")], []),
        ([("clean", '{"only": "a')], []),
        ([("clean", '"a')], []),
        ([("clean", '{"only": "a"}')], ["clean"]),
        ([("read", '{"path": "a"}'), ("clean", '{"on')], ["read"]),
        ([("read", ""), ("clean", "{}")], ["read", "clean"]),
    ],
    ids=["nothing", "half", "text", "whole", "behind-another", "only-the-last"],
)
async def test_Generate__a_call_that_the_limit_cut_off_is_left_out(
    world: World, answering: Any, calls: list[tuple[str, str]], made: list[str]
) -> None:
    model, config = model_of(world, answering)
    world.provider.on(model.partition("/")[2], answering(*calls))
    router = await world.router(config)
    answered = await router.generate(model, strict=True, tools=TOOLS)
    assert answered.completion.stop_reason == generation_pb2.STOP_REASON_LENGTH
    assert answered.text == "ok"
    assert [event.tool_call.name for event in answered.events if event.HasField("tool_call")] == made
    kept = [
        block.tool_call.name for block in answered.completion.message.content if block.HasField("tool_call")
    ]
    assert kept == made


def by_gemini(*calls: tuple[str, str], stop: str = "SAFETY") -> Answering:
    made = (
        {"name": name, **({"args": json.loads(arguments)} if arguments else {})} for name, arguments in calls
    )
    parts = [{"text": "ok"}, *({"functionCall": call} for call in made)]
    return streamed(said_by_gemini(*parts), said_by_gemini(finish=stop))


@pytest.mark.parametrize(
    ("answering", "stop"),
    [(by_chat, "content_filter"), (by_anthropic, "refusal"), (by_responses, "content_filter")],
)
@pytest.mark.parametrize("arguments", ["", '{"only": "a'])
async def test_Generate__a_call_that_a_filter_cut_off_is_left_out(
    world: World, answering: Any, stop: str, arguments: str
) -> None:
    model, config = model_of(world, answering)
    calls = [("read", '{"path": "a"}'), ("clean", arguments)]
    world.provider.on(model.partition("/")[2], answering(*calls, stop=stop))
    router = await world.router(config)
    answered = await router.generate(model, strict=True, tools=TOOLS)
    assert answered.completion.stop_reason == generation_pb2.STOP_REASON_REFUSAL
    assert [event.tool_call.name for event in answered.events if event.HasField("tool_call")] == ["read"]


@pytest.mark.parametrize(
    ("answering", "stop"), [(by_chat, "odd"), (by_anthropic, "odd"), (by_responses, "steered")]
)
async def test_Generate__a_call_with_an_unknown_stop_reason_must_be_complete(
    world: World, answering: Any, stop: str
) -> None:
    model, config = model_of(world, answering)
    world.provider.on(model.partition("/")[2], answering(("read", '{"path": "a"}'), ("clean", ""), stop=stop))
    router = await world.router(config)
    answered = await router.generate(model, strict=True, tools=TOOLS)
    assert answered.completion.stop_reason == generation_pb2.STOP_REASON_UNSPECIFIED
    assert [event.tool_call.name for event in answered.events if event.HasField("tool_call")] == ["read"]


@pytest.mark.parametrize(
    ("stop", "made"), [("SAFETY", ["read"]), ("MAX_TOKENS", ["read"]), ("STOP", ["read", "clean"])]
)
async def test_Generate__a_call_that_gemini_has_no_arguments_of_yet_is_left_out(
    world: World, stop: str, made: list[str]
) -> None:
    world.provider.on("flash", by_gemini(("read", '{"path": "a"}'), ("clean", ""), stop=stop))
    router, model = await open_gemini_router(world)
    answered = await router.generate(model, strict=True, tools=TOOLS)
    assert [event.tool_call.name for event in answered.events if event.HasField("tool_call")] == made


async def test_Generate__a_refusal_within_a_chat_cuts_calls_off_too(world: World) -> None:
    parts = [tool_part(0, "", "c0", "clean"), chunk({"refusal": "I cannot."}), chunk({}, "stop"), USAGE_CHUNK]
    world.provider.on("one", sse(*parts))
    router = await world.router()
    answered = await router.generate(world.ref("one"), strict=True, tools=TOOLS)
    assert answered.completion.stop_reason == generation_pb2.STOP_REASON_REFUSAL
    assert [block.WhichOneof("block") for block in answered.completion.message.content] == ["text"]


@pytest.mark.parametrize(("answering", "stop"), [(by_chat, "tool_calls"), (by_anthropic, "tool_use")])
async def test_Generate__a_call_without_arguments_is_complete_below_the_limit(
    world: World, answering: Any, stop: str
) -> None:
    model, config = model_of(world, answering)
    world.provider.on(model.partition("/")[2], answering(("clean", ""), stop=stop))
    router = await world.router(config)
    answered = await router.generate(model, strict=True, tools=TOOLS)
    [call] = [event.tool_call for event in answered.events if event.HasField("tool_call")]
    assert json.loads(call.block_json)["arguments"] == {}
    assert answered.completion.stop_reason == generation_pb2.STOP_REASON_TOOL_USE


async def test_runner__makes_no_call_that_was_cut_off_and_keeps_the_text_beside_it(
    world: World, keys: Path, tmp_path: Path
) -> None:
    mesh = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    queue(mesh, world)
    world.provider.on(
        "one", by_chat(("write_file", '{"path":"a.txt","content":"first half of')), sse(*chat("again"))
    )
    await carry(mesh, world, keys, tmp_path)
    assert mesh.messages(message_pb2.ROLE_TOOL_RESULT) == []
    assert not list((tmp_path / "work").rglob("a.txt"))
    [answer] = mesh.messages(message_pb2.ROLE_ASSISTANT)
    assert [block.text.text for block in answer.content] == ["ok"]


WHOLE = ("write_file", '{"path":"a.txt","content":"x"}')


async def test_runner__makes_no_call_of_a_model_that_refused(
    world: World, keys: Path, tmp_path: Path
) -> None:
    mesh = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    queue(mesh, world)
    world.provider.on("one", by_chat(WHOLE, stop="content_filter"), sse(*chat("again")))
    await carry(mesh, world, keys, tmp_path)
    assert mesh.messages(message_pb2.ROLE_TOOL_RESULT) == []
    [answer] = mesh.messages(message_pb2.ROLE_ASSISTANT)
    assert [block.WhichOneof("block") for block in answer.content] == ["text"]
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "ok"


async def test_runner__a_run_of_a_model_that_refused_with_nothing_but_calls_fails(
    world: World, keys: Path, tmp_path: Path
) -> None:
    mesh = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    queue(mesh, world)
    name, arguments = WHOLE
    world.provider.on(
        "one", sse(tool_part(0, arguments, "c1", name), chunk({}, "content_filter"), USAGE_CHUNK)
    )
    await carry(mesh, world, keys, tmp_path, may_fail=True)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_MODEL_REFUSED
    assert mesh.messages(message_pb2.ROLE_ASSISTANT) == []
