"""Variants of OpenAI's format: content in parts, arguments that are no text.

Anything else is a failure.
"""

import json
from typing import Any

import pytest
from spawnmesh.model_router.v1 import generation_pb2

from tests.support.model_router.fixtures import World
from tests.support.model_router.provider import Answering, chat, chunk, raw_sse, slowly, sse, tool_part
from tests.support.model_router.responses import COMPLETED


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*chat("from two")))
    return world


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def parts(*said: Any, **more: Any) -> dict[str, Any]:
    return chunk({"content": list(said), **more})


def called(arguments: Any, *, before: tuple[str, ...] = ()) -> Answering:
    start = tool_part(0, "", "c1", "read")
    whole = chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]})
    return sse(start, *(tool_part(0, piece) for piece in before), whole, chunk({}, "tool_calls"))


@pytest.mark.parametrize("send", [sse, slowly])
async def test_Generate__text_may_come_in_lists_of_parts(world: World, send: Any) -> None:
    events = [
        parts(),
        parts(text("so"), text(" far")),
        chunk({"content": ", "}),
        parts(text("so \ud83d")),
        parts(text("\ude00")),
    ]
    world.provider.on("one", send(*events, chunk({}, "stop")))
    router = await world.router()

    answered = await router.generate(world.ref("one"))

    assert answered.text == "so far, so 😀"
    assert [block.text.text for block in answered.completion.message.content] == [answered.text]
    assert answered.verdicts == [("one", "ANSWERED", "UNSPECIFIED")]


@pytest.mark.parametrize("thought", ["Let me see.", [text("Let me"), text(" see.")]])
async def test_Generate__parts_that_think_are_thoughts_and_no_text(world: World, thought: Any) -> None:
    world.provider.on(
        "one", sse(parts({"type": "thinking", "thinking": thought}), parts(text("It is.")), chunk({}, "stop"))
    )
    router = await world.router()

    answered = await router.generate(world.ref("one"))

    assert answered.text == "It is."
    thoughts = [
        block.thinking.text for block in answered.completion.message.content if block.HasField("thinking")
    ]
    assert thoughts == ["Let me see."]


async def test_Generate__parts_that_refuse_are_a_refusal(world: World) -> None:
    world.provider.on("one", sse(parts({"type": "refusal", "refusal": "I will not."}), chunk({}, "stop")))
    router = await world.router()

    answered = await router.generate(world.ref("one"))

    assert answered.text == "I will not."
    assert answered.completion.stop_reason == generation_pb2.STOP_REASON_REFUSAL


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ({"path": "ä.txt", "n": [1, None, 1.5]}, '{"n":[1,null,1.5],"path":"ä.txt"}'),
        ({"n": [1, None, 1.5], "path": "ä.txt"}, '{"n":[1,null,1.5],"path":"ä.txt"}'),
        ({"x": "\ud800"}, '{"x":"\ufffd"}'),
        ({}, "{}"),
        (None, "{}"),
    ],
)
async def test_Generate__arguments_may_be_an_object(world: World, arguments: Any, kept: str) -> None:
    world.provider.on("one", called(arguments))
    router = await world.router()

    answered = await router.generate(world.ref("one"))

    [block] = answered.completion.message.content
    assert block.tool_call.block_json == f'{{"type":"toolCall","id":"c1","name":"read","arguments":{kept}}}'
    assert answered.verdicts == [("one", "ANSWERED", "UNSPECIFIED")]


async def test_Generate__arguments_of_a_response_may_be_an_object(world: World) -> None:
    item = {
        "type": "function_call",
        "id": "fc",
        "call_id": "c1",
        "name": "read",
        "arguments": {"b": 1, "a": 2},
    }
    events = [{"type": "response.output_item.done", "output_index": 0, "item": item}, COMPLETED]
    world.provider.on("one", raw_sse("".join(f"data: {json.dumps(event)}\n\n" for event in events)))
    config = world.config()
    config["models"][world.ref("one")] |= {"api": "responses"}
    router = await world.router(config)

    answered = await router.generate(world.ref("one"))

    [block] = answered.completion.message.content
    assert json.loads(block.tool_call.block_json)["arguments"] == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    "answering",
    [
        sse(parts({"type": "image_url", "image_url": {"url": "data:"}}), chunk({}, "stop")),
        sse(parts({"type": "text", "text": {"value": "so"}}), chunk({}, "stop")),
        sse(parts({"type": "text"}), chunk({}, "stop")),
        sse(parts("so"), chunk({}, "stop")),
        sse(parts({"type": "thinking", "thinking": 7}, text("so")), chunk({}, "stop")),
        sse(chunk({"content": {"text": "so"}}), chunk({}, "stop")),
        called(["a"]),
        called(7),
        called({"a": 1}, before=('{"a": ',)),
    ],
)
async def test_Generate__other_shapes_are_the_candidates_failure(world: World, answering: Answering) -> None:
    world.provider.on("one", answering)
    router = await world.router()

    answered = await router.generate(world.ref("one"), world.ref("two"))

    assert answered.verdicts == [("one", "FAILED", "SERVER_ERROR"), ("two", "ANSWERED", "UNSPECIFIED")]
    assert answered.text == "from two"
