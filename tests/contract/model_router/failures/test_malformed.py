"""Malformed answers are read if possible. Otherwise the provider failed; the service never does."""

import json
from typing import Any

import pytest
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_core.reasons import Reason

from tests.support.model_router.fixtures import World, assistant, call_block, tool_result, user
from tests.support.model_router.provider import (
    Answering,
    anthropic_answer,
    chat,
    chunk,
    error,
    named_sse,
    raw_sse,
    slowly,
    sse,
)


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*chat("from two")))
    return world


def used(prompt_tokens: Any) -> Answering:
    counted = {**chunk({}), "choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 5}}
    return sse(chunk({"content": "hi"}), chunk({}, "stop"), counted)


def called(**function: Any) -> Answering:
    part = {"index": 0, "id": "c1", "function": function}
    return sse(chunk({"tool_calls": [part]}), chunk({}, "tool_calls"))


@pytest.mark.parametrize(
    ("answering", "text"),
    [
        (slowly(*chat("so \ud83d", "\ude00!")), "so 😀!"),  # One character in two chunks.
        (sse(*chat("so \ude00", "!")), "so \ufffd!"),
        (sse(chunk({"content": "so \ud83d"}), chunk({}, "stop")), "so \ufffd"),
        (sse(*[{**event, "id": 7, "model": 8} for event in chat("so")]), "so"),
    ],
)
async def test_Generate__halves_of_characters_are_joined_or_replaced(
    world: World, answering: Answering, text: str
) -> None:
    world.provider.on("one", answering)
    router = await world.router()
    answered = await router.generate(world.ref("one"))
    assert answered.text == text
    assert answered.completion.message.content[0].text.text == text


@pytest.mark.parametrize(("said", "count"), [("20", 20), (20.0, 20), (-20, 2), ([1], 2), (float("nan"), 2)])
async def test_Generate__a_count_that_is_none_spoils_no_answer_and_is_estimated(
    world: World, said: Any, count: int
) -> None:
    world.provider.on("one", used(said))
    router = await world.router()
    await router.prepare(1, max_tokens_per_minute=2**40)
    answered = await router.generate(world.ref("one"))
    assert answered.completion.message.usage.input_token_count == count


@pytest.mark.parametrize(
    ("answering", "reason"),
    [
        (called(name=None, arguments="{}"), "SERVER_ERROR"),
        (called(name={"x": 1}, arguments="{}"), "SERVER_ERROR"),
        (raw_sse(f"data: {'[' * 100_000}\n\n"), "SERVER_ERROR"),
        (
            raw_sse(json.dumps({"error": {"code": "insufficient_quota", "message": "no"}}, indent=1)),
            "BILLING",
        ),
        (
            error(
                429, {"error": {"message": "Rate limit"}}, retry_after=f"Mon, 01 Jan {'9' * 30} 00:00:00 GMT"
            ),
            "RATE_LIMIT",
        ),
    ],
)
async def test_Generate__what_cannot_be_read_is_the_candidates_failure(
    world: World, answering: Answering, reason: str
) -> None:
    world.provider.on("one", answering)
    world.provider.on("claude", named_sse(*anthropic_answer()))
    router = await world.router()
    answered = await router.generate(world.ref("one"), f"{world.anthropic}/claude")
    assert answered.verdicts == [("one", "FAILED", reason), ("claude", "ANSWERED", "UNSPECIFIED")]


async def test_Generate__an_empty_event_says_no_more_than_that_the_endpoint_is_there(world: World) -> None:
    lines = "".join(f"data: {json.dumps(event)}\n\ndata:\n\n" for event in chat("here"))
    world.provider.on("one", raw_sse(lines + "data: [DONE]\n\n"))
    router = await world.router()
    assert (await router.generate(world.ref("one"))).text == "here"


@pytest.mark.parametrize("kind", ["message_start", "message_delta"])
async def test_Generate__an_endpoint_of_anthropics_format_may_leave_out_usage(
    world: World, kind: str
) -> None:
    events = anthropic_answer()
    for event in events:
        if event["type"] == kind:
            event.get("message", event).pop("usage")
    world.provider.on("claude", named_sse(*events))
    router = await world.router()
    answered = await router.generate(f"{world.anthropic}/claude")
    assert answered.text == "I read it."
    assert answered.completion.message.usage.output_token_count == (42 if kind == "message_start" else 1)


@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud800"}', '{"a": "\\ude00\\ud83d x"}', '{"a": 1e999}', '{"a": NaN}']
)
@pytest.mark.parametrize("model", ["one", "claude"])
async def test_Generate__what_a_conversation_holds_burns_no_candidate(
    world: World, arguments: str, model: str
) -> None:
    world.provider.on("one", sse(*chat("fine")))
    world.provider.on("claude", named_sse(*anthropic_answer()))
    router = await world.router()
    block = f'{{"type":"toolCall","id":"c1","name":"read","arguments":{arguments}}}'
    talk = [user("go"), assistant(call_block("c1", "read", block)), tool_result("c1", "done")]
    name = f"{world.anthropic}/claude" if model == "claude" else world.ref(model)
    answered = await router.generate(name, messages=talk, strict=True)
    assert answered.verdicts[0] == (model, "ANSWERED", "UNSPECIFIED")


@pytest.mark.parametrize("parameters", ['{"maximum": NaN}', '{"maximum": -Infinity}'])
async def test_Generate__a_number_that_json_has_not_is_the_callers_fault(
    world: World, parameters: str
) -> None:
    world.provider.on("one", sse(*chat("fine")))
    router = await world.router()
    tool = generation_pb2.ToolDeclaration(name="t", parameters_json=parameters)
    answered = await router.generate(world.ref("one"), tools=[tool])
    assert answered.refused.reason is Reason.INVALID_REQUEST
    assert await router.explain(world.ref("one"), strict=True) == [("one", "READY")]


async def test_Generate__half_a_character_in_a_tools_schema_reaches_the_provider_as_none(
    world: World,
) -> None:
    world.provider.on("one", sse(*chat("fine")))
    router = await world.router()
    tool = generation_pb2.ToolDeclaration(name="t", parameters_json='{"title": "x\\ud800"}')
    assert (await router.generate(world.ref("one"), tools=[tool])).text == "fine"
    assert world.provider.bodies[-1]["tools"][0]["function"]["parameters"] == {"title": "x\ufffd"}
