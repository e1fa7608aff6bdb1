"""The JSON of a request is bounded before it is decoded, and a large one delays no other call."""

import json
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_model_router.domain.request_json import MAX_JSON_VALUES

from tests.support.loop_steps import longest_step
from tests.support.model_router.fixtures import Router, World, assistant, call_block, tool_result, user
from tests.support.model_router.provider import chat, openai_error, sse

MAX_SCHEMA_BYTES = 262_144
# Decoding and encoding so many takes the processor for a tenth of a second.
NUMBERS = ",".join(["0.5"] * 90_000)


def tools(*schemas: str) -> list[generation_pb2.ToolDeclaration]:
    return [
        generation_pb2.ToolDeclaration(name=f"t{number}", parameters_json=schema)
        for number, schema in enumerate(schemas)
    ]


def calls(*blocks: str) -> list[message_pb2.Message]:
    """Return a conversation in which these tool calls were made."""
    messages = [user("go on")]
    for number, block in enumerate(blocks):
        messages += [
            assistant(call_block(f"c{number}", "read", block)),
            tool_result(f"c{number}", "done"),
        ]
    return messages


def objects(count: int) -> str:
    """Return an object with a list of `count` objects of one number: 2 x count + 2 values."""
    return '{"a":[' + ",".join(['{"":0}'] * count) + "]}"


def call_with(arguments: str) -> str:
    return '{"type":"toolCall","arguments":' + arguments + "}"


HALF = MAX_JSON_VALUES // 2
ESCAPED = json.dumps(objects(HALF)).replace(",", "\\u002c").replace("{", "\\u007b")
TOO_MANY: dict[str, dict[str, Any]] = {
    "one call": {"messages": calls(call_with(objects(HALF)))},
    "many calls": {"messages": calls(*[call_with(objects(300))] * 170)},
    "JSON in a string": {"messages": calls(call_with(json.dumps(objects(HALF))))},
    "escapes in a string": {"messages": calls(call_with(ESCAPED))},
    "no JSON": {"messages": calls(call_with(objects(HALF))[:-3])},
    "tools": {"tools": tools(*[objects(10_000)] * 5)},
    "tools and calls": {"messages": calls(call_with(objects(HALF - 1_000))), "tools": tools(objects(1_000))},
}


async def refusal_of(router: Router, **fields: Any) -> MeshError:
    fields.setdefault("messages", [user("hello")])
    request = pb.ExplainRouteRequest(request=pb.GenerateRequest(**fields))
    with pytest.raises(MeshError) as refused:
        await router.call("ExplainRoute", request)
    return refused.value


@pytest.mark.parametrize("fields", TOO_MANY.values(), ids=TOO_MANY.keys())
async def test_ExplainRoute__too_many_values_are_refused(world: World, fields: dict[str, Any]) -> None:
    error = await refusal_of(await world.router(), **fields)
    assert error.reason is Reason.INVALID_REQUEST
    assert "have more than 100000 JSON values" in str(error)


async def test_ExplainRoute__a_schema_has_a_limit_of_bytes(world: World) -> None:
    router = await world.router()
    padding = " " * (MAX_SCHEMA_BYTES - 2)
    assert await router.explain(world.ref("two"), tools=tools("{}" + padding))
    error = await refusal_of(router, tools=tools("{}" + padding + " "))
    assert error.reason is Reason.INVALID_REQUEST
    assert "parameters_json" in str(error)


async def test_Generate__too_many_values_are_refused_before_a_provider_is_called(world: World) -> None:
    world.provider.on("two", sse(*chat("hi")))
    router = await world.router()
    just_enough: dict[str, Any] = {
        "tools": tools(objects(10_000)),
        "messages": calls(call_with(objects(HALF - 10_008)), call_with(json.dumps("a,[{" * 100))),
    }
    assert (await router.generate(world.ref("two"), strict=True, **just_enough)).text == "hi"
    for fields in TOO_MANY.values():
        answered = await router.generate(world.ref("two"), strict=True, **fields)
        assert answered.refused.reason is Reason.INVALID_REQUEST
    assert world.provider.asked("two") == 1


async def test_Generate__commas_in_texts_are_no_values(world: World) -> None:
    world.provider.on("two", sse(*chat("hi")))
    router = await world.router()
    table = "1,[2,{3\n" * HALF
    messages = calls(call_with(json.dumps({"path": "a.csv", "text": table})))
    assert (await router.generate(world.ref("two"), strict=True, messages=messages)).text == "hi"
    [sent] = [one for one in world.provider.bodies[-1]["messages"] if one["role"] == "assistant"]
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"])["text"] == table


async def test_ExplainRoute__large_schemas_leave_others_their_turns(world: World) -> None:
    router = await world.router()
    half = NUMBERS[: len(NUMBERS) // 2]
    declared = tools(*[f'{{"enum":[{half}]}}'] * 2)
    await router.explain(world.ref("two"))
    async with longest_step() as steps:
        assert await router.explain(world.ref("two"), tools=declared)
    assert steps.longest_seconds < 0.05


async def test_Generate__large_tool_calls_leave_others_their_turns(world: World) -> None:
    answers = (
        sse(*chat("hi")),
        openai_error(400, "You exceeded your current quota", "insufficient_quota", None),
    )
    world.provider.on("two", *answers)
    router = await world.router()
    messages = calls(call_with(f'{{"a":[{NUMBERS}]}}'))
    await router.generate(world.ref("two"), strict=True, messages=calls(call_with("{}")))
    world.provider.on("two", *answers)
    async with longest_step() as steps:
        assert (await router.generate(world.ref("two"), strict=True, messages=messages)).text == "hi"
        answered = await router.generate(world.ref("two"), strict=True, messages=messages)
    assert answered.refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert steps.longest_seconds < 0.05


@pytest.mark.parametrize("depth", [100, 300, 500, 900, 1_500, 5_000, 50_000])
async def test_ExplainRoute__a_deep_schema_is_taken_or_refused(world: World, depth: int) -> None:
    router = await world.router()
    schema = '{"a":' * depth + "1" + "}" * depth
    if depth <= 100:
        assert await router.explain(world.ref("two"), tools=tools(schema))
        return
    request = pb.ExplainRouteRequest(
        request=pb.GenerateRequest(tools=tools(schema), messages=[user("hello")])
    )
    reason: Reason | None = None
    try:
        await router.call("ExplainRoute", request)
    except MeshError as error:
        reason = error.reason
    assert reason in (None, Reason.INVALID_REQUEST)
