"""Streams of endpoints that leave out, repeat or contradict what their API has: deltas hold anyway."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb

from tests.support.model_router.deltas import arguments_of, check_deltas, shown_arguments, thinking_of
from tests.support.model_router.fixtures import Answered, World
from tests.support.model_router.provider import chat, chunk, sse, tool_part
from tests.support.model_router.responses import called
from tests.support.model_router.written import (
    BEGINNINGS,
    SIGNATURE,
    WrittenCall,
    WrittenThought,
    by_anthropic,
    by_responses,
    ending,
    in_packets,
    open_apis,
    reasoned_in_parts,
)
from tests.support.model_router.written import WrittenText as Text

TOOLS = [generation_pb2.ToolDeclaration(name="read")]
THOUGHT = WrittenThought((("Let me ", "think."),))


async def answer(
    world: World, api: str, events: Sequence[dict[str, Any]], *, is_cut: bool = False
) -> Answered:
    apis = await open_apis(world)
    world.provider.on(apis.short(api), in_packets([*BEGINNINGS[api], *events, *ending(api, is_cut=is_cut)]))
    answered = await apis.router.generate(apis.models[api], strict=True, tools=TOOLS)
    check_deltas(answered.events)
    return answered


def thoughts_of(answered: Answered) -> list[tuple[str, str]]:
    """Return the text and the signature of each thought in the completion."""
    blocks = answered.completion.message.content
    return [(block.thinking.text, block.thinking.signature) for block in blocks if block.HasField("thinking")]


def arguments_in_call(answered: Answered) -> str:
    [call] = [event.tool_call for event in answered.events if event.HasField("tool_call")]
    return arguments_of(call)


def pieces_of(answered: Answered) -> list[pb.ToolCallDelta]:
    return [event.tool_call_delta for event in answered.events if event.HasField("tool_call_delta")]


async def test_Generate__parts_of_a_summary_are_set_apart_in_the_deltas(world: World) -> None:
    events = [*reasoned_in_parts([["First", "."], [], ["Then."]], 0), *by_responses(Text(("ok",)), 1)]
    answered = await answer(world, "responses", events)
    assert thinking_of(answered.events) == "First.\n\nThen."
    assert thoughts_of(answered) == [("First.\n\nThen.", "openai_reasoning:gAAA")]


@pytest.mark.parametrize("sent", [[], [["First."]]])
async def test_Generate__thoughts_without_deltas_are_shown_when_they_are_complete(
    world: World, sent: list[list[str]]
) -> None:
    *deltas, done = reasoned_in_parts(sent, 0)
    done["item"]["summary"] = [{"type": "summary_text", "text": text} for text in ("First.", "Then.")]
    answered = await answer(world, "responses", [*deltas, done, *by_responses(Text(("ok",)), 1)])
    assert thoughts_of(answered) == [("First.\n\nThen.", "openai_reasoning:gAAA")]
    assert answered.kinds[1] == "thinking_delta"


async def test_Generate__a_thought_is_what_its_deltas_showed(world: World) -> None:
    *deltas, done = reasoned_in_parts([["First."]], 0)
    raw = {"type": "response.reasoning_text.delta", "item_id": "rs_0", "output_index": 0, "content_index": 0}
    events = [deltas[0], {**raw, "delta": "Hm."}, *deltas[1:], done, *by_responses(Text(("ok",)), 1)]
    answered = await answer(world, "responses", events)
    assert thoughts_of(answered) == [("Hm.\n\nFirst.", "openai_reasoning:gAAA")]


@pytest.mark.parametrize("api", ["responses", "anthropic"])
async def test_Generate__a_thought_that_is_not_ended_is_complete_at_the_end(world: World, api: str) -> None:
    writer = {"responses": by_responses, "anthropic": by_anthropic}[api]
    answered = await answer(world, api, [*writer(THOUGHT, 0)[:-1], *writer(Text(("ok",)), 1)], is_cut=True)
    assert thoughts_of(answered) == [("Let me think.", "")]


async def test_Generate__a_thought_may_begin_with_its_block(world: World) -> None:
    events = by_anthropic(THOUGHT, 0)
    events[0]["content_block"]["thinking"] = "So. "
    answered = await answer(world, "anthropic", [*events, *by_anthropic(Text(("ok",)), 1)])
    assert thoughts_of(answered) == [("So. Let me think.", SIGNATURE)]


async def test_Generate__arguments_without_deltas_are_a_piece_of_a_call_that_was_announced(
    world: World,
) -> None:
    added, _, _, done = called("c1", "read", '{"path": "a.txt"}')
    announced = await answer(world, "responses", [added, done])
    assert shown_arguments(announced.events, "c1") == arguments_in_call(announced) == '{"path": "a.txt"}'
    whole = await answer(world, "responses", [done])
    assert (pieces_of(whole), arguments_in_call(whole)) == ([], '{"path": "a.txt"}')


@pytest.mark.parametrize(
    ("pieces", "repeated", "kept"),
    [
        (['{"path": ', '"a", "n": 1}'], {"n": 1, "path": "a"}, '{"path": "a", "n": 1}'),
        ([' {"path": ', '"a"} '], '{"path": "a"}', '{"path": "a"}'),
        (['{"path": '], '{"path": "a"}', '{"path": "a"}'),
        (['{"path": "a"}'], None, '{"path": "a"}'),
    ],
    ids=["object", "spaces", "rest", "nothing"],
)
async def test_Generate__a_call_is_made_with_the_arguments_that_were_shown(
    world: World, pieces: list[str], repeated: Any, kept: str
) -> None:
    *events, done = called("c1", "read", *pieces)
    done["item"]["arguments"] = repeated
    answered = await answer(world, "responses", [*events, done])
    assert arguments_in_call(answered) == kept
    assert (shown_arguments(answered.events, "c1") or "").strip() == kept


async def test_Generate__pieces_that_make_no_call_yield_to_the_complete_arguments(world: World) -> None:
    apis = await open_apis(world)
    *events, done = called("c1", "read", '{"p', '{"path', '{"path": "a"}')
    done["item"]["arguments"] = '{"path": "a"}'
    world.provider.on(
        apis.short("responses"), in_packets([*BEGINNINGS["responses"], *events, done, *ending("responses")])
    )
    answered = await apis.router.generate(apis.models["responses"], strict=True, tools=TOOLS)
    assert arguments_in_call(answered) == '{"path": "a"}'


async def test_Generate__a_call_whose_name_comes_behind_its_arguments_is_not_shown(world: World) -> None:
    events = [
        tool_part(0, '{"path": ', "c1"),
        tool_part(0, '"a.txt"}', None, "read"),
        tool_part(1, "", "c2"),
        tool_part(1, "{}", None, "read"),
    ]
    answered = await answer(world, "chat", events)
    assert [(piece.tool_call_id, piece.arguments) for piece in pieces_of(answered)] == [("c2", "{}")]
    made = [event.tool_call for event in answered.events if event.HasField("tool_call")]
    assert list(map(arguments_of, made)) == ['{"path": "a.txt"}', "{}"]


async def test_Generate__arguments_that_are_not_shown_are_paid_for(world: World) -> None:
    apis = await open_apis(world)
    unnamed = [tool_part(0, '{"path": ', "c1"), tool_part(0, '"a.txt"}')]
    mixed = [tool_part(1, "", "c2", "read"), tool_part(2, "", "c3", "read"), tool_part(1, "{}" * 20)]
    world.provider.on("one", in_packets([*BEGINNINGS["chat"], *unnamed, *mixed]))
    world.provider.on("two", sse(*chat("took over")))
    answered = await apis.router.generate(world.ref("one"), world.ref("two"), tools=TOOLS)
    assert [piece.arguments for piece in pieces_of(answered)] == ["", ""]
    assert answered.completion.failed_usage.output_token_count == 15  # 57 bytes.


async def test_Generate__calls_without_places_and_ids_are_not_taken_for_each_other(world: World) -> None:
    events = [*called("", "read", "{}"), called("", "read", '{"path": "b"}')[-1]]
    for event in events:
        del event["output_index"]
    answered = await answer(world, "responses", events)
    made = [event.tool_call for event in answered.events if event.HasField("tool_call")]
    assert list(map(arguments_of, made)) == ["{}", '{"path": "b"}']
    assert len({call.tool_call_id for call in made}) == 2


async def test_Generate__a_call_of_mixed_ones_that_is_not_the_last_is_not_cut_off(world: World) -> None:
    first = by_anthropic(WrittenCall("c1", "read", ('{"path": "a',)), 0)
    second = by_anthropic(WrittenCall("c2", "read", ('{"path": "b',)), 1)
    events = [*first[:2], *second[:2], first[2], second[2], *by_anthropic(Text(("ok",)), 2)]
    answered = await answer(world, "anthropic", events)
    made = [event.tool_call for event in answered.events if event.HasField("tool_call")]
    assert [json.loads(call.block_json)["arguments"] for call in made] == ['{"path": "a', '{"path": "b']


@pytest.mark.parametrize(
    "delta",
    [
        {"type": "thinking_delta", "thinking": "Hm."},
        {"type": "input_json_delta", "partial_json": "{}"},
    ],
)
async def test_Generate__deltas_in_a_block_of_another_type_are_not_shown(
    world: World, delta: dict[str, Any]
) -> None:
    events = by_anthropic(Text(("o", "k")), 0)
    events.insert(2, {"type": "content_block_delta", "index": 0, "delta": delta})
    answered = await answer(world, "anthropic", events)
    assert (answered.text, thoughts_of(answered), pieces_of(answered)) == ("ok", [], [])


@pytest.mark.parametrize(("call_id", "made"), [(7, "7"), ("c\ud800", "c\ufffd")])
async def test_Generate__an_odd_id_is_the_same_in_pieces_and_block(
    world: World, call_id: Any, made: str
) -> None:
    answered = await answer(world, "chat", [tool_part(0, "{}", call_id, "read"), chunk({})])
    assert shown_arguments(answered.events, made) == arguments_in_call(answered) == "{}"
