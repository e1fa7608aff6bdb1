"""Answers of models, in both wire formats."""

import json

import pytest
from opentelemetry.trace import StatusCode
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import World, assistant, image_block, user
from tests.support.model_router.provider import (
    BROKEN,
    anthropic_answer,
    chat,
    chunk,
    named_sse,
    slowly,
    sse,
    tool_part,
)
from tests.support.model_router.spending import reasoning_tokens

READ = generation_pb2.ToolDeclaration(
    name="read",
    description="Reads.",
    parameters_json='{"type":"object","properties":{"path":{"type":"string"}}}',
)


async def test_Generate__text_is_streamed_and_complete_in_the_completion(world: World) -> None:
    world.provider.on("one", slowly(*chat("Hel", "lo")))
    answered = await (await world.router()).generate(world.ref("one"))
    assert answered.kinds == ["attempt_started", "text_delta", "text_delta", "completion"]
    completion = answered.completion
    assert [block.text.text for block in completion.message.content] == ["Hello"]
    assert (completion.message.model, completion.stop_reason) == (
        world.ref("one"),
        generation_pb2.STOP_REASON_END,
    )
    usage = completion.message.usage
    assert (usage.input_token_count, usage.output_token_count, usage.cache_read_token_count) == (20, 5, 8)
    assert answered.verdicts == [("one", "ANSWERED", "UNSPECIFIED")]
    assert [attempt.number for attempt in completion.attempts] == [1]


async def test_Generate__text_that_arrives_together_is_sent_together(world: World) -> None:
    world.provider.on("one", sse(*chat(*(f"{number} " for number in range(100)))))
    answered = await (await world.router()).generate(world.ref("one"))
    assert answered.text == "".join(f"{number} " for number in range(100))
    assert answered.kinds.count("text_delta") < 10


async def test_Generate__no_model_means_the_primary_and_an_alias_its_model(world: World) -> None:
    world.provider.on("one", sse(*chat("from one")))
    world.provider.on("two", sse(*chat("from two")))
    router = await world.router()
    assert (await router.generate()).text == "from one"
    assert (await router.generate("FAST")).text == "from two"


async def test_Generate__tool_calls_are_joined_from_parts(world: World) -> None:
    parts = [
        chunk({"role": "assistant", "content": None}),
        tool_part(0, "", "call_a", "read"),
        tool_part(0, '{"path": '),
        tool_part(0, '"a.txt", "n": 1.50}'),
        tool_part(1, "", "call_b", "read"),
        tool_part(1, '{"path": "cut of'),
        tool_part(2, "", "call_c", "list"),
        chunk({}, "tool_calls"),
    ]
    world.provider.on("one", sse(*parts))
    answered = await (await world.router()).generate(tools=[READ])
    assert answered.completion.stop_reason == generation_pb2.STOP_REASON_TOOL_USE
    calls = [event.tool_call for event in answered.events if event.HasField("tool_call")]
    assert [block.tool_call for block in answered.completion.message.content] == calls
    assert (
        calls[0].block_json
        == '{"type":"toolCall","id":"call_a","name":"read","arguments":{"path": "a.txt", "n": 1.50}}'
    )
    assert json.loads(calls[1].block_json)["arguments"] == '{"path": "cut of'
    assert json.loads(calls[2].block_json) == {
        "type": "toolCall",
        "id": "call_c",
        "name": "list",
        "arguments": {},
    }
    assert world.provider.bodies[0]["tools"][0]["function"]["parameters"] == json.loads(READ.parameters_json)


async def test_Generate__anthropic_thoughts_come_back_to_it_unchanged(world: World) -> None:
    world.provider.on("claude", named_sse(*anthropic_answer()))
    router, claude = await world.router(), f"{world.anthropic}/claude"
    first = (await router.generate(claude, tools=[READ], system_prompt="Be brief.")).completion
    assert first.stop_reason == generation_pb2.STOP_REASON_TOOL_USE
    kinds = [block.WhichOneof("block") for block in first.message.content]
    assert kinds == ["thinking", "thinking", "text", "tool_call"]
    usage = first.message.usage
    assert (usage.input_token_count, usage.cache_read_token_count, usage.cache_write_token_count) == (
        113,
        100,
        3,
    )
    assert usage.output_token_count == 42

    await router.generate(claude, messages=[user("hello"), first.message, user("and?")])
    sent = world.provider.bodies[1]
    assert sent["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Let me think.", "signature": "c2lnbmVk"},
        {"type": "redacted_thinking", "data": "c2VhbGVk"},
        {"type": "text", "text": "I read it."},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.txt"}},
    ]
    assert world.provider.bodies[0]["system"] == "Be brief."
    assert world.provider.bodies[0]["max_tokens"] == 4096


async def test_Generate__anthropic_stream_that_ends_without_its_end_is_no_answer(world: World) -> None:
    world.provider.on("claude", named_sse(*anthropic_answer()[:8]))
    refused = (await (await world.router()).generate(f"{world.anthropic}/claude", strict=True)).refused
    assert refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert refused.facts["candidate_1"] == f"{world.anthropic}/claude FAILED TIMEOUT"


@pytest.mark.parametrize(
    ("finish", "stop"), [("length", "LENGTH"), ("content_filter", "REFUSAL"), ("stop", "END")]
)
async def test_Generate__says_why_the_model_stopped(world: World, finish: str, stop: str) -> None:
    world.provider.on("one", sse(*chat("So far", finish=finish)))
    completion = (await (await world.router()).generate()).completion
    assert generation_pb2.StopReason.Name(completion.stop_reason) == f"STOP_REASON_{stop}"


@pytest.mark.parametrize("names", [("nobody/none",), ("", "nobody/none"), ("just-a-word",)])
async def test_Generate__unknown_model_before_anyone_is_called(world: World, names: tuple[str, ...]) -> None:
    world.provider.on("one", sse(*chat("hi")))
    answered = await (await world.router()).generate(*names)
    assert answered.refused.reason is Reason.UNKNOWN_MODEL
    assert answered.refused.facts["model"] == names[-1]
    assert answered.events == []
    assert world.provider.bodies == []


async def test_Generate__strict_asks_nobody_else(world: World) -> None:
    world.provider.on("two", BROKEN)
    refused = (await (await world.router()).generate(world.ref("two"), world.ref("one"), strict=True)).refused
    assert refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert refused.facts["candidate_1"] == f"{world.ref('two')} FAILED SERVER_ERROR"
    assert refused.facts["candidate_2"] == f"{world.ref('one')} NOT_NEEDED"
    assert world.provider.asked("one") == 0


async def test_Generate__a_model_without_tools_is_routed_around(world: World) -> None:
    world.provider.on("one", sse(*chat("with tools")))
    answered = await (await world.router()).generate(world.ref("blind"), tools=[READ])
    assert answered.verdicts == [("blind", "INCAPABLE", "UNSPECIFIED"), ("one", "ANSWERED", "UNSPECIFIED")]
    assert answered.completion.verdicts[0].detail == "cannot take tools"
    assert world.provider.asked("blind") == 0


async def test_Generate__a_blind_model_gets_a_note_for_each_image(world: World) -> None:
    world.provider.on("blind", sse(*chat("I cannot see it")))
    answered = await (await world.router()).generate(
        world.ref("blind"), messages=[user("see", image_block())]
    )
    assert world.provider.bodies[0]["messages"][0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "text", "text": "[An image was left out here.]"},
    ]
    assert answered.completion.verdicts[0].detail == "images left out: the model cannot see"


async def test_Generate__images_are_routed_around_or_refused_by_policy(world: World) -> None:
    world.provider.on("one", sse(*chat("I see")))
    seeing = user("see", image_block())
    around = await world.router(world.config(blind_model_policy="ROUTE_AROUND"))
    answered = await around.generate(world.ref("blind"), messages=[seeing])
    assert answered.verdicts == [("blind", "INCAPABLE", "UNSPECIFIED"), ("one", "ANSWERED", "UNSPECIFIED")]
    assert world.provider.bodies[0]["messages"][0]["content"][1]["type"] == "image_url"
    refusing = await world.router(world.config(blind_model_policy="REFUSE"))
    assert (
        await refusing.generate(world.ref("blind"), messages=[seeing])
    ).refused.reason is Reason.MODEL_REFUSED
    assert world.provider.asked("blind") == 0


async def test_Generate__images_do_not_follow_to_another_provider(world: World) -> None:
    world.provider.on("one", BROKEN)
    world.provider.on("claude", named_sse(*anthropic_answer()))
    answered = await (await world.router()).generate(
        world.ref("one"), f"{world.anthropic}/claude", messages=[user("see", image_block())]
    )
    assert [part["type"] for part in world.provider.bodies[0]["messages"][0]["content"]] == [
        "text",
        "image_url",
    ]
    assert [part["type"] for part in world.provider.bodies[1]["messages"][0]["content"]] == ["text", "text"]
    assert "images left out" in answered.completion.verdicts[1].detail


@pytest.mark.parametrize("parameters", ["{", "[]", '"x"'])
async def test_Generate__parameters_of_a_tool_must_be_an_object(world: World, parameters: str) -> None:
    tool = generation_pb2.ToolDeclaration(name="read", parameters_json=parameters)
    refused = (await (await world.router()).generate(tools=[tool])).refused
    assert refused.reason is Reason.INVALID_REQUEST
    assert refused.violations[0].field == "tools[0].parameters_json"


async def test_Generate__a_run_may_not_name_another_session(world: World) -> None:
    world.provider.on("one", sse(*chat("hi")))
    router = await world.router()
    own, other = new_id(IdKind.SESSION), new_id(IdKind.SESSION)
    minter = TokenMinter("session", world.keys / "session.pem")
    router.token = minter.run_token(router.tenant, own, new_id(IdKind.RUN), 1, 600)
    assert (await router.generate(session_id=other)).refused.reason is Reason.NOT_FOUND
    assert (await router.generate(session_id=own)).text == "hi"
    spans = [span for span in router.spans.get_finished_spans() if span.name == "chat one"]
    assert [dict(span.attributes or {})["gen_ai.conversation.id"] for span in spans] == [own]


async def test_Generate__each_attempt_is_a_span_below_the_call_without_content(world: World) -> None:
    world.provider.on("one", BROKEN)
    world.provider.on("two", sse(*chat("the answer is secret")))
    router = await world.router()
    await router.generate(
        world.ref("one"),
        world.ref("two"),
        messages=[user("a secret question"), assistant("x")],
        max_output_token_count=77,
    )
    spans = router.spans.get_finished_spans()
    (served,) = [span for span in spans if span.name.endswith("/Generate") and span.kind.name == "SERVER"]
    failed, answered = [span for span in spans if span.name.startswith("chat ")]
    for span in (failed, answered):
        assert span.parent is not None
        assert span.parent.span_id == served.context.span_id
    told = dict(failed.attributes or {})
    assert (told["spawnmesh.failover.reason"], told["spawnmesh.attempt"]) == ("SERVER_ERROR", 1)
    assert told["http.response.status_code"] == 500
    assert "gen_ai.response.time_to_first_chunk" not in told
    assert failed.status.status_code is StatusCode.ERROR
    told = dict(answered.attributes or {})
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == world.scripted
    assert (told["gen_ai.request.model"], told["gen_ai.response.model"]) == ("two", "served-model")
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.cache_read.input_tokens"]) == (20, 8)
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    assert (told["gen_ai.request.max_tokens"], told["gen_ai.request.stream"]) == (77, True)
    assert (told["server.address"], told["server.port"]) == (
        "127.0.0.1",
        int(world.provider.base_url.rpartition(":")[2]),
    )
    assert 0 < told["gen_ai.response.time_to_first_chunk"] < 600
    assert "secret" not in "".join(span.to_json() for span in spans)


@pytest.mark.parametrize(
    ("details", "counted"),
    [({"reasoning_tokens": 2}, 2), ({"reasoning_tokens": 99}, 5), ({}, 0), (["?"], 0), (None, 0)],
    ids=["reported", "more than the output", "no number", "no object", "absent"],
)
async def test_Generate__reasoning_that_a_provider_reports_is_in_the_span(
    world: World, details: object, counted: int
) -> None:
    *chunks, usage = chat("hi")
    reported = {**usage["usage"], "completion_tokens_details": details}
    world.provider.on("one", sse(*chunks, {**usage, "usage": reported}))
    router = await world.router()
    assert (await router.generate(world.ref("one"))).completion.message.usage.output_token_count == 5
    assert reasoning_tokens(router) == counted
