"""The content of model calls in their spans: by consent of two, masked, and bounded."""

import json
from typing import Any

import jsonschema
import pytest
from opentelemetry.sdk.trace import ReadableSpan

from tests.support.model_router.fixtures import (
    Router,
    World,
    assistant,
    call_block,
    image_block,
    tool_result,
    user,
)
from tests.support.model_router.provider import BROKEN, USAGE_CHUNK, chat, chunk, sse, tool_part

SECRET = "sk-ant-api03-" + "Qx7" * 12
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
SYSTEM, LEFT_OUT = "gen_ai.system_instructions", "spawnmesh.input.messages.left_out"

TEXT = {"properties": {"type": {"const": "text"}, "content": {"type": "string"}}, "required": ["content"]}
CALL = {
    "properties": {"type": {"const": "tool_call"}, "id": {"type": "string"}, "name": {"type": "string"}},
    "required": ["id", "name", "arguments"],
}
RESPONSE = {
    "properties": {"type": {"const": "tool_call_response"}, "id": {"type": "string"}},
    "required": ["id", "response"],
}
OTHER = {"properties": {"type": {"enum": ["reasoning", "image", "omitted"]}}}
MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "parts"],
        "properties": {
            "role": {"enum": ["system", "user", "assistant", "tool"]},
            "parts": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "object", "required": ["type"], "oneOf": [TEXT, CALL, RESPONSE, OTHER]},
            },
            "finish_reason": {"enum": ["stop", "length", "content_filter", "tool_call", "unknown"]},
        },
    },
}
"""The form of messages in the GenAI conventions, as far as we use it."""


async def recording(world: World, max_bytes: int = 65_536) -> Router:
    """Return a router that records the content of the calls of its tenant."""
    router = await world.router(trace_content_max_bytes=max_bytes)
    await router.prepare(1, trace_content=True)
    return router


def chats(router: Router) -> list[ReadableSpan]:
    return [span for span in router.spans.get_finished_spans() if span.name.startswith("chat ")]


def messages_of(span: ReadableSpan, name: str) -> list[dict[str, Any]]:
    found = json.loads(str((span.attributes or {})[name]))
    jsonschema.validate(found, MESSAGES)
    return list(found)


async def test_Generate__messages_and_answer_are_in_the_span_in_the_form_of_the_conventions(
    world: World,
) -> None:
    world.provider.on("one", BROKEN)
    world.provider.on("two", sse(*chat("It is blue.")))
    router = await recording(world)
    await router.generate(
        world.ref("one"),
        world.ref("two"),
        system_prompt="Be brief.",
        messages=[
            user("What colour?", image_block()),
            assistant("I look.", call_block("c1", "look", '{"arguments": {"where": "up"}}')),
            tool_result("c1", "blue"),
        ],
    )
    failed, answered = chats(router)
    for span in (failed, answered):
        asked, called, result = messages_of(span, INPUT)
        assert [part["type"] for part in asked["parts"]] == ["text", "image"]
        assert asked["parts"][0]["content"] == "What colour?"
        assert called["role"] == "assistant"
        call = called["parts"][1]
        assert (call["id"], call["name"], json.loads(call["arguments"])) == ("c1", "look", {"where": "up"})
        assert (result["role"], result["parts"][0]["response"]) == ("tool", "blue")
        assert json.loads(str((span.attributes or {})[SYSTEM])) == [{"type": "text", "content": "Be brief."}]
    assert OUTPUT not in (failed.attributes or {})
    [answer] = messages_of(answered, OUTPUT)
    assert (answer["parts"], answer["finish_reason"]) == (
        [{"type": "text", "content": "It is blue."}],
        "stop",
    )


@pytest.mark.parametrize(("max_bytes", "consents"), [(0, True), (65_536, False)])
async def test_Generate__no_content_is_recorded_unless_operator_and_tenant_want_it(
    world: World, max_bytes: int, consents: bool
) -> None:
    world.provider.on("one", sse(*chat("a private answer")))
    router = await world.router(trace_content_max_bytes=max_bytes)
    await router.prepare(1, trace_content=consents)
    await router.generate(world.ref("one"), messages=[user("a private question")])
    assert len(chats(router)) == 1
    assert "private" not in "".join(span.to_json() for span in router.spans.get_finished_spans())


async def test_Generate__a_tenant_that_withdraws_its_consent_is_recorded_no_more(world: World) -> None:
    world.provider.on("one", sse(*chat("first")), sse(*chat("second")))
    router = await recording(world)
    await router.generate(world.ref("one"))
    await router.prepare(2, trace_content=False)
    await router.generate(world.ref("one"))
    first, second = chats(router)
    assert messages_of(first, OUTPUT)
    assert OUTPUT not in (second.attributes or {})


async def test_Generate__secrets_are_masked_wherever_they_are_also_where_a_text_is_cut(world: World) -> None:
    world.provider.on("one", sse(*chat(f"Your key is {SECRET}.")))
    router = await recording(world, 4096)
    at_the_cut = "x" * (1024 - 20) + f" {SECRET} and more" + "y" * 4096
    await router.generate(
        world.ref("one"),
        system_prompt=f"Use {SECRET}",
        messages=[
            user(at_the_cut),
            assistant(call_block("c1", "look", json.dumps({"arguments": {"key": SECRET}}))),
            tool_result("c1", json.dumps({"token": SECRET})),
        ],
    )
    told = "".join(span.to_json() for span in router.spans.get_finished_spans())
    assert SECRET[:16] not in told
    [span] = chats(router)
    assert "characters in all" in messages_of(span, INPUT)[0]["parts"][0]["content"]


async def test_Generate__files_of_a_spawn_are_never_in_the_span(world: World) -> None:
    files = [{"name": "plan.txt", "content": "the secret plan"}]
    arguments = json.dumps({"task": "Read it.", "attachments": files})
    batch = json.dumps({"calls": [{"name": "sessions_spawn", "arguments": json.loads(arguments)}]})
    call = tool_part(0, arguments, "c1", "sessions_spawn")
    world.provider.on("one", sse(chunk({"role": "assistant"}), call, chunk({}, "tool_calls"), USAGE_CHUNK))
    router = await recording(world)
    asked = assistant(call_block("c0", "parallel", json.dumps({"arguments": json.loads(batch)})))
    await router.generate(world.ref("one"), messages=[user("Go."), asked, tool_result("c0", "done")])
    [span] = chats(router)
    assert "secret plan" not in span.to_json()
    [told] = messages_of(span, OUTPUT)[0]["parts"]
    assert json.loads(told["arguments"])["attachments"][0]["content"]["$redacted"] == "attachment"


async def test_Generate__a_long_conversation_leaves_its_newest_messages_within_the_bound(
    world: World,
) -> None:
    bound = 16_384
    world.provider.on("one", sse(*chat("word " * 20_000)))
    router = await recording(world, bound)
    sizes = [100, 300_000, *([900] * 40)]
    await router.generate(
        world.ref("one"), messages=[user(f"{number} " + "z" * size) for number, size in enumerate(sizes)]
    )
    [span] = chats(router)
    kept = messages_of(span, INPUT)
    attributes = dict(span.attributes or {})
    assert kept[-1]["parts"][0]["content"].startswith(f"{len(sizes) - 1} z")
    assert len(kept) + int(str(attributes[LEFT_OUT])) == len(sizes)
    assert len(kept) > 10
    assert all(len(str(attributes[name]).encode()) <= bound for name in (INPUT, OUTPUT))
    assert messages_of(span, OUTPUT)[0]["parts"][0]["content"].startswith("word word")
