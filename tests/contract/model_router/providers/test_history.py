"""Histories are adapted before they are sent: names of tools, ids of calls, blank texts."""

import json

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2

from tests.support.model_router.fixtures import World, assistant, call_block, tool_result, user
from tests.support.model_router.gemini import open_gemini_router, streamed
from tests.support.model_router.gemini import said as said_by_gemini
from tests.support.model_router.history import names_in
from tests.support.model_router.provider import (
    Answering,
    anthropic_answer,
    chat,
    chunk,
    named_sse,
    sse,
    tool_part,
)
from tests.support.model_router.responses import COMPLETED, called, responses

NAME = "files.read/" + "long-" * 30
TOOL = generation_pb2.ToolDeclaration(name=NAME, parameters_json='{"type":"object"}')
PLAIN = generation_pb2.ToolDeclaration(name="read", parameters_json='{"type":"object"}')
KINDS = ["chat", "responses", "anthropic", "gemini"]
MAX_LENGTHS = {"chat": 64, "responses": 64, "anthropic": 128, "gemini": 63}


def call_of(call_id: str, name: str = NAME) -> message_pb2.ContentBlock:
    block = {"type": "toolCall", "id": call_id, "name": name, "arguments": {}}
    return call_block(call_id, name, json.dumps(block))


def result_of(call_id: str, text: str = "done", name: str = NAME) -> message_pb2.Message:
    result = tool_result(call_id, text)
    result.tool_name = name
    return result


def answer_with_call(kind: str, name: str) -> Answering:
    match kind:
        case "anthropic":
            events = json.loads(json.dumps(anthropic_answer()).replace('"name": "read"', f'"name": "{name}"'))
            return named_sse(*events)
        case "gemini":
            return streamed(said_by_gemini({"functionCall": {"name": name, "args": {}}}, finish="STOP"))
        case "responses":
            return responses(*called("c9", name, "{}"), COMPLETED)
    return sse(tool_part(0, "{}", "c9", name), chunk({}, "tool_calls"))


@pytest.mark.parametrize("kind", KINDS)
async def test_Generate__a_name_that_the_provider_refuses_is_changed_and_restored(
    world: World, kind: str
) -> None:
    config = world.config()
    config["models"][world.ref("one")]["api"] = "responses" if kind == "responses" else "chat"
    router, gemini = await open_gemini_router(world) if kind == "gemini" else (await world.router(config), "")
    model = {"anthropic": f"{world.anthropic}/claude", "gemini": gemini}.get(kind, world.ref("one"))
    short = model.partition("/")[2]
    world.provider.on(short, answer_with_call(kind, "text_only"))
    messages = [user("go"), assistant(call_of("c1")), result_of("c1")]
    await router.generate(model, messages=messages, tools=[TOOL, PLAIN])
    [sent] = names_in(world.provider.bodies[-1]) - {"read"}
    assert len(sent) <= MAX_LENGTHS[kind]
    assert sent.replace("_", "").replace("-", "").isalnum()

    world.provider.on(short, answer_with_call(kind, sent))
    answer = (await router.generate(model, messages=messages, tools=[TOOL, PLAIN])).completion.message
    [call] = [block.tool_call for block in answer.content if block.HasField("tool_call")]
    assert call.name == NAME
    assert json.loads(call.block_json)["name"] == NAME


async def test_Generate__a_call_id_that_an_earlier_answer_used_is_changed(world: World) -> None:
    world.provider.on("one", sse(*chat("ok")))
    world.provider.on("claude", named_sse(*anthropic_answer()))
    router = await world.router()
    messages = [user("go")]
    for text in ("first", "second"):
        messages += [assistant(call_of("call_0", "read")), result_of("call_0", text, "read")]
    await router.generate(world.ref("one"), messages=messages, tools=[PLAIN])
    await router.generate(f"{world.anthropic}/claude", messages=messages, tools=[PLAIN])
    chat_body, anthropic_body = world.provider.bodies
    made = [one["tool_calls"][0]["id"] for one in chat_body["messages"] if one.get("tool_calls")]
    results = [
        (one["tool_call_id"], one["content"]) for one in chat_body["messages"] if one["role"] == "tool"
    ]
    assert made[0] == "call_0" != made[1]
    assert results == [(made[0], "first"), (made[1], "second")]
    used = [one["content"][0] for one in anthropic_body["messages"][1:]]
    assert [block.get("id") or block["tool_use_id"] for block in used] == [made[0], made[0], made[1], made[1]]


async def test_Generate__a_text_of_blanks_alone_is_not_sent_to_anthropic(world: World) -> None:
    world.provider.on("claude", named_sse(*anthropic_answer()))
    router = await world.router()
    messages = [
        user("go", " \n"),
        assistant("\n\n", call_of("c1", "read")),
        result_of("c1", "  ", "read"),
        user(" "),
    ]
    await router.generate(f"{world.anthropic}/claude", messages=messages, tools=[PLAIN], system_prompt=" \n")
    [body] = world.provider.bodies
    texts = [block["text"] for one in body["messages"] for block in one["content"] if block["type"] == "text"]
    assert texts == ["go"]
    assert [block["type"] for block in body["messages"][1]["content"]] == ["tool_use"]
    assert body["messages"][2]["content"][0]["content"] == []
    assert "system" not in body
