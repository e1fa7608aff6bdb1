"""Thinking and tool calls are streamed while the model writes them, and promise nothing yet."""

import asyncio
import json
from contextlib import aclosing
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_model_router.domain.unicode import repair_surrogates
from spawnmesh_runtime.impersonation import use_token

from tests.support.model_router.deltas import check_deltas, shown_arguments, thinking_of
from tests.support.model_router.fixtures import Answered, Router, World, user
from tests.support.model_router.history import names_in
from tests.support.model_router.provider import Answering, Stall, chat, sse
from tests.support.model_router.written import (
    APIS,
    BEGINNINGS,
    WRITERS,
    ApiModels,
    Written,
    WrittenCall,
    WrittenText,
    WrittenThought,
    cut,
    ending,
    in_packets,
    mixed,
    open_apis,
    written,
)

TOOLS = [
    generation_pb2.ToolDeclaration(name=name, parameters_json='{"type":"object"}')
    for name in ("read", "files.read/" + "long-" * 30)
]
THOUGHT = WrittenThought((("Let me ", "think."),))
CALL = WrittenCall("c1", "read", ('{"path": ', '"a.txt"}'))
TEXT = WrittenText(("I read it.",))


def calls_of(answered: Answered) -> list[Any]:
    return [event.tool_call for event in answered.events if event.HasField("tool_call")]


def open_call(api: str) -> list[dict[str, Any]]:
    """Return a call without its end. Gemini sends a call when it is complete."""
    events = WRITERS[api](CALL, 1)
    return {"gemini": [], "chat": events}.get(api, events[:-1])


async def events_until(router: Router, model: str, kinds: set[str]) -> list[pb.GenerationEvent]:
    """Return the events until one of each kind has come, and cancel the call."""
    events: list[pb.GenerationEvent] = []
    request = pb.GenerateRequest(model=model, messages=[user("hello")], tools=TOOLS)
    with use_token(router.token):
        async with aclosing(
            router.peer.stream(router.stub.Generate, request, timeout_seconds=3600)
        ) as answers:
            while not kinds <= {str(event.WhichOneof("event")) for event in events}:
                events += (await anext(answers)).events
    return events


@pytest.mark.parametrize("api", APIS)
async def test_Generate__deltas_arrive_while_the_model_writes(world: World, api: str) -> None:
    stall = Stall((*BEGINNINGS[api], *WRITERS[api](THOUGHT, 0), *open_call(api)))
    apis = await open_apis(world, idle_timeout_seconds=3600)
    world.provider.on(apis.short(api), stall)
    kinds = {"thinking_delta"} | ({"tool_call_delta"} if open_call(api) else set())
    events = await events_until(apis.router, apis.models[api], kinds)
    assert not stall.hung_up.is_set(), "the model still writes"
    assert "Let me think.".startswith(thinking_of(events))
    if open_call(api):
        pieces = [event.tool_call_delta for event in events if event.HasField("tool_call_delta")]
        assert pieces[0] == pb.ToolCallDelta(
            tool_call_id="c1", name="read", arguments=pieces[0].arguments, begins_call=True
        )
    async with asyncio.timeout(60):
        await stall.hung_up.wait()


@pytest.mark.parametrize("api", APIS)
async def test_Generate__an_attempt_that_fails_behind_deltas_leads_to_the_next_candidate(
    world: World, api: str
) -> None:
    apis = await open_apis(world)
    begun = [*BEGINNINGS[api], *WRITERS[api](THOUGHT, 0), *open_call(api)]
    world.provider.on(apis.short(api), in_packets(begun))
    world.provider.on("two", sse(*chat("took over")))
    answered = await apis.router.generate(apis.models[api], world.ref("two"), tools=TOOLS)
    kinds = list(dict.fromkeys(answered.kinds))
    pieces = ["thinking_delta", *(["tool_call_delta"] if open_call(api) else [])]
    assert kinds == ["attempt_started", *pieces, "attempt_failed", "text_delta", "completion"]
    assert answered.kinds.count("attempt_started") == 2
    assert answered.kinds.index("attempt_failed") > answered.kinds.index(pieces[-1])
    assert (answered.text, answered.verdicts[0][1]) == ("took over", "FAILED")
    assert [block.WhichOneof("block") for block in answered.completion.message.content] == ["text"]
    # Each written text is counted once: a token for each four bytes.
    size = sum(map(len, THOUGHT.pieces)) + (len(CALL.arguments) if open_call(api) else 0)
    assert answered.completion.failed_usage.output_token_count == -(-size // 4)


@pytest.mark.parametrize("api", APIS)
async def test_Generate__pieces_of_a_call_have_the_name_in_the_request(world: World, api: str) -> None:
    apis, name = await open_apis(world), TOOLS[1].name
    sent = await sent_name(world, apis, api)
    call = WrittenCall("c1", sent, CALL.pieces)
    world.provider.on(apis.short(api), in_packets([*written(api, call), *ending(api)]))
    answered = await apis.router.generate(apis.models[api], tools=TOOLS)
    assert [call.name for call in calls_of(answered)] == [name]
    names = {event.tool_call_delta.name for event in answered.events if event.HasField("tool_call_delta")}
    assert names == (set() if api == "gemini" else {name})


async def sent_name(world: World, apis: ApiModels, api: str) -> str:
    """Return the name that the provider gets for the second tool."""
    world.provider.on(apis.short(api), in_packets([*written(api, TEXT), *ending(api)]))
    await apis.router.generate(apis.models[api], tools=TOOLS)
    [name] = names_in(world.provider.bodies[-1]) - {"read"}
    return name


@pytest.mark.parametrize("ids", ["none", "late"])
@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
async def test_Generate__pieces_have_the_id_of_the_complete_call_whenever_it_comes(
    world: World, api: str, ids: str
) -> None:
    apis = await open_apis(world)
    calls = [CALL, WrittenCall("c2", "read", ("{}",))]
    world.provider.on(apis.short(api), in_packets([*written(api, *calls, ids=ids), *ending(api)]))
    answered = await apis.router.generate(apis.models[api], tools=TOOLS)
    check_deltas(answered.events)
    made = calls_of(answered)
    assert [shown_arguments(answered.events, call.tool_call_id) for call in made] == [
        call.arguments for call in calls
    ]
    if (api, ids) == ("chat", "late"):  # It comes with the first arguments.
        assert [call.tool_call_id for call in made] == ["c1", "c2"]


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
async def test_Generate__only_the_newest_of_mixed_calls_is_shown(world: World, api: str) -> None:
    apis = await open_apis(world)
    first = WRITERS[api](CALL, 0)
    second = WRITERS[api](WrittenCall("c2", "read", ("{}",)), 1)
    events = [*BEGINNINGS[api], *first[:2], *second[:2], *first[2:], *second[2:], *ending(api)]
    world.provider.on(apis.short(api), in_packets(events))
    answered = await apis.router.generate(apis.models[api], tools=TOOLS)
    check_deltas(answered.events)
    assert [json.loads(call.block_json)["arguments"] for call in calls_of(answered)] == [
        {"path": "a.txt"},
        {},
    ]
    assert shown_arguments(answered.events, "c1") == '{"path": '
    assert shown_arguments(answered.events, "c2") == "{}"


_VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab"\\é😀\ud83d\ude00', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ké😀", max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)
_TEXTS = st.text(alphabet="ab \n😀é\ud83d\ude00", min_size=1, max_size=12)
_SPACES = st.text(alphabet=" \n", max_size=2)
_ARGUMENTS = st.builds(
    lambda before, value, is_ascii, behind: f"{before}{json.dumps(value, ensure_ascii=is_ascii)}{behind}",
    _SPACES,
    st.dictionaries(st.text("ké😀", max_size=2), _VALUES, max_size=3),
    st.booleans(),
    _SPACES,
) | st.sampled_from(["", '{"path": "a', "{]"])
_ITEMS = st.lists(
    st.tuples(st.just("thought"), st.lists(_TEXTS, min_size=1, max_size=3))
    | st.tuples(st.just("text"), _TEXTS)
    | st.tuples(st.sampled_from(["call", "renamed"]), _ARGUMENTS),
    max_size=6,
)


def build(items: list[tuple[str, Any]], renamed: str, random: Random) -> list[Written]:
    """Return the items in pieces. `renamed` is the provider's name of the second tool."""
    built: list[Written] = []
    for place, (kind, content) in enumerate(items):
        if kind == "thought":
            built.append(WrittenThought(tuple(cut(part, random) for part in content)))
        elif kind == "text":
            built.append(WrittenText(cut(content, random)))
        else:
            name = "read" if kind == "call" else renamed
            built.append(WrittenCall(f"c{place}", name, cut(content, random)))
    return [*built, TEXT]


def stream(
    api: str, items: list[Written], ids: str, *, is_mixed: bool, random: Random
) -> list[dict[str, Any]]:
    """Return the events of the answer. Calls that follow each other may be mixed."""
    events, run = list(BEGINNINGS[api]), []
    for place, item in enumerate(items):
        made = WRITERS[api](item, place, ids=ids)
        if is_mixed and isinstance(item, WrittenCall):
            run.append(made)
            continue
        events += [*mixed(run, random), *made]
        run = []
    return [*events, *ending(api)]


def thinking_in(api: str, items: list[Written]) -> str:
    """Return the text of all thoughts as the completion has it."""
    thoughts = [item for item in items if isinstance(item, WrittenThought)]
    if api in ("chat", "gemini"):
        texts = ["".join(thought.pieces) for thought in thoughts]
        return "".join(
            map(repair_surrogates, texts) if api == "gemini" else [repair_surrogates("".join(texts))]
        )
    separator = "\n\n" if api == "responses" else ""
    return "".join(
        repair_surrogates(separator.join("".join(part) for part in thought.parts)) for thought in thoughts
    )


@pytest.mark.parametrize("api", APIS)
async def test_Generate__deltas_agree_with_any_answer_however_it_is_cut(world: World, api: str) -> None:
    apis = await open_apis(world)
    names = [TOOLS[0].name, TOOLS[1].name]
    renamed, loop = await sent_name(world, apis, api), asyncio.get_running_loop()

    async def check(items: list[Written], answering: Answering, *, is_mixed: bool) -> None:
        world.provider.on(apis.short(api), answering)
        answered = await apis.router.generate(apis.models[api], strict=True, tools=TOOLS)
        check_deltas(answered.events)
        assert thinking_of(answered.events) == thinking_in(api, items)
        made, wanted = calls_of(answered), [item for item in items if isinstance(item, WrittenCall)]
        assert len(made) == len(wanted)
        assert {call.name for call in made} <= set(names)
        if is_mixed or api == "gemini":
            return
        for call, item in zip(made, wanted, strict=True):
            shown = shown_arguments(answered.events, call.tool_call_id)
            assert (shown or "") == repair_surrogates(item.arguments)

    @settings(max_examples=25, database=None)
    @given(
        _ITEMS, st.sampled_from(["first", "late", "none"]), st.booleans(), st.randoms(use_true_random=False)
    )
    def holds(kinds: list[tuple[str, Any]], ids: str, is_mixed: bool, random: Random) -> None:
        items = build(kinds, renamed, random)
        events = stream(api, items, ids, is_mixed=is_mixed, random=random)
        answering = in_packets(events, [random.randrange(20, 600) for _ in range(8)])
        checking = check(items, answering, is_mixed=is_mixed)
        asyncio.run_coroutine_threadsafe(checking, loop).result()

    await asyncio.to_thread(holds)
