"""OpenAI's responses: answers, tools, images, reasoning, refusals, error bodies and broken
streams.
"""

import asyncio
import json
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2, thinking_pb2
from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import is_transient
from spawnmesh_core.reasons import Reason

from tests.support.model_router.fixtures import (
    CANARY,
    Router,
    World,
    assistant,
    call_block,
    image_block,
    tool_result,
    user,
)
from tests.support.model_router.provider import (
    RATE_LIMITED,
    Answering,
    Stall,
    anthropic_answer,
    chat,
    cut_after,
    error,
    named_sse,
    openai_error,
    raw_sse,
    slowly,
    sse,
)
from tests.support.model_router.responses import (
    COMPLETED,
    CREATED,
    called,
    declined,
    failed,
    incomplete,
    numbered,
    reasoned,
    responses,
    said,
)
from tests.support.model_router.spending import reasoning_tokens

READ = generation_pb2.ToolDeclaration(
    name="read",
    description="Reads.",
    parameters_json='{"type":"object","properties":{"path":{"type":"string"}}}',
)
LOW, HIGH = thinking_pb2.THINKING_LEVEL_LOW, thinking_pb2.THINKING_LEVEL_HIGH
FOREIGN_SEAL = openai_error(
    400,
    "The encrypted content gAAA... could not be verified. Reason: Encrypted content organization_id did not match.",
    "invalid_request_error",
    "invalid_encrypted_content",
)


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*chat("took over")))
    return world


async def open_router(world: World, *, kind: str = "openai", **settings: Any) -> Router:
    """Return a router with three models: `one` uses responses and thinks, `blind` uses responses
    and does not think, `two` uses chat completions.
    """
    config = world.config()
    config["providers"][world.scripted]["kind"] = kind
    config["models"][world.ref("one")] |= {"api": "responses", "thinking": {"low": "low", "high": "high"}}
    config["models"][world.ref("blind")] |= {"api": "responses", "tools": True}
    return await world.router(config, **settings)


async def test_Generate__responses_stream_text_and_usage(world: World) -> None:
    world.provider.on("one", responses(*said("Hel", "lo."), COMPLETED))
    router = await open_router(world)
    answered = await router.generate(
        world.ref("one"),
        system_prompt="Be brief.",
        max_output_token_count=500,
        messages=[user("hi", " there")],
    )
    assert answered.text == "Hello."
    completion = answered.completion
    assert completion.stop_reason == generation_pb2.STOP_REASON_END
    assert completion.message.usage == message_pb2.TokenUsage(
        input_token_count=20, output_token_count=5, cache_read_token_count=8, cache_write_token_count=2
    )
    assert reasoning_tokens(router) == 3
    [body] = world.provider.bodies
    assert (body["model"], body["instructions"], body["max_output_tokens"]) == ("one", "Be brief.", 500)
    assert (body["stream"], body["store"]) == (True, False)
    texts = [{"type": "input_text", "text": text} for text in ("hi", " there")]
    assert body["input"] == [{"type": "message", "role": "user", "content": texts}]
    assert "reasoning" not in body
    assert world.provider.keys == [CANARY]
    [span] = [span for span in router.spans.get_finished_spans() if span.name == "chat one"]
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.provider.name"] == "openai"
    assert (attributes["gen_ai.response.id"], attributes["gen_ai.response.model"]) == (
        "resp_9",
        "served-model",
    )


@pytest.mark.parametrize("kind", ["openai", "openai_compatible"])
async def test_Generate__responses_call_tools_and_get_results_with_images(world: World, kind: str) -> None:
    calls = [*called("call_a", "read", '{"path": ', '"a.txt"}', place=1), *called("call_b", "read", place=2)]
    world.provider.on(
        "one", responses(*said("I look."), *calls, COMPLETED), responses(*said("It is a cat."), COMPLETED)
    )
    router = await open_router(world, kind=kind)
    first = (await router.generate(world.ref("one"), tools=[READ])).completion
    assert first.stop_reason == generation_pb2.STOP_REASON_TOOL_USE
    assert [block.WhichOneof("block") for block in first.message.content] == [
        "text",
        "tool_call",
        "tool_call",
    ]
    made = [block.tool_call for block in first.message.content[1:]]
    assert (
        made[0].block_json == '{"type":"toolCall","id":"call_a","name":"read","arguments":{"path": "a.txt"}}'
    )
    assert json.loads(made[1].block_json)["arguments"] == {}

    results = [
        tool_result("call_a", "the file", image_block()),
        tool_result("call_b", "no path", failed=True),
    ]
    second = await router.generate(
        world.ref("one"), messages=[user("look", image_block()), first.message, *results], tools=[READ]
    )
    assert second.text == "It is a cat."
    asked, text, one, other, shown, plain = world.provider.bodies[1]["input"]
    assert [part["type"] for part in asked["content"]] == ["input_text", "input_image"]
    assert asked["content"][1]["image_url"].startswith("data:image/png;base64,")
    assert text["content"] == [{"type": "output_text", "text": "I look."}]
    assert (one["type"], one["call_id"], one["arguments"]) == ("function_call", "call_a", '{"path": "a.txt"}')
    assert (other["call_id"], other["arguments"]) == ("call_b", "{}")
    assert (shown["type"], shown["call_id"]) == ("function_call_output", "call_a")
    assert [part["type"] for part in shown["output"]] == ["input_text", "input_image"]
    assert plain["output"] == "no path"
    [tool] = world.provider.bodies[0]["tools"]
    assert (tool["type"], tool["name"], tool["strict"]) == ("function", "read", False)
    assert tool["parameters"] == json.loads(READ.parameters_json)


async def test_Generate__reasoning_goes_back_sealed_to_the_model_that_thought_it(world: World) -> None:
    thought = [*reasoned("Weigh it.", "gAAA", place=0), *called("call_a", "read", "{}", place=1)]
    world.provider.on("one", responses(*thought, COMPLETED), responses(*said("Done."), COMPLETED))
    world.provider.on("blind", responses(*said("Done too."), COMPLETED))
    router = await open_router(world)
    first = (await router.generate(world.ref("one"), tools=[READ], thinking=HIGH)).completion
    assert (first.thinking, first.message.content[0].thinking.text) == (HIGH, "Weigh it.")
    messages = [user("go"), first.message, tool_result("call_a", "text")]
    assert (await router.generate(world.ref("one"), messages=messages)).text == "Done."
    assert (await router.generate(world.ref("blind"), messages=messages)).text == "Done too."
    assert (await router.generate(world.ref("two"), messages=messages)).text == "took over"
    told, again, other, by_chat = world.provider.bodies
    assert (told["reasoning"], told["include"]) == ({"effort": "high"}, ["reasoning.encrypted_content"])
    assert [item["type"] for item in again["input"]] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert again["input"][1]["encrypted_content"] == "gAAA"
    assert again["input"][1]["summary"] == [{"type": "summary_text", "text": "Weigh it."}]
    assert [item["type"] for item in other["input"]] == ["message", "function_call", "function_call_output"]
    assert "include" not in other
    assert "gAAA" not in str(by_chat)


async def test_Generate__reasoning_that_led_to_nothing_stays_behind(world: World) -> None:
    world.provider.on("one", responses(*reasoned("", "gAAA"), incomplete("max_output_tokens")))
    router = await open_router(world)
    first = (await router.generate(world.ref("one"))).completion
    assert first.stop_reason == generation_pb2.STOP_REASON_LENGTH
    assert [block.WhichOneof("block") for block in first.message.content] == ["thinking"]
    await router.generate(world.ref("one"), messages=[user("go"), first.message, user("go on")])
    assert [item["type"] for item in world.provider.bodies[1]["input"]] == ["message", "message"]


async def test_Generate__reasoning_sealed_for_another_account_is_left_out(world: World) -> None:
    thought = [*reasoned("Weigh it.", "gAAA", place=0), *said("So.", place=1)]
    world.provider.on(
        "one", responses(*thought, COMPLETED), FOREIGN_SEAL, responses(*said("Goes on."), COMPLETED)
    )
    router = await open_router(world)
    first = (await router.generate(world.ref("one"))).completion
    second = await router.generate(world.ref("one"), messages=[user("go"), first.message, user("go on")])
    assert second.text == "Goes on."
    assert len(second.completion.attempts) == 1
    assert [item["type"] for item in world.provider.bodies[1]["input"]] == ["message", "reasoning"] + [
        "message"
    ] * 2
    assert [item["type"] for item in world.provider.bodies[2]["input"]] == ["message"] * 3


async def test_Generate__another_providers_talk_is_read_by_responses(world: World) -> None:
    world.provider.on("one", responses(*said("ok"), COMPLETED))
    router = await open_router(world)
    block = call_block(
        "toolu:1", "read", '{"type":"toolUse","id":"toolu:1","name":"read","input":{"path":"b"}}'
    )
    signed = message_pb2.ContentBlock(thinking=message_pb2.Thinking(text="hm", signature="c2ln"))
    messages = [user("go"), assistant(signed, block), tool_result("toolu:1", "gone")]
    assert (await router.generate(world.ref("one"), messages=messages)).text == "ok"
    _, call, result = world.provider.bodies[0]["input"]
    assert json.loads(call["arguments"]) == {"path": "b"}
    assert call["call_id"] == result["call_id"] != "toolu:1"


async def test_Generate__a_limit_that_the_api_refuses_is_raised_to_what_it_takes(world: World) -> None:
    world.provider.on("one", responses(*said("ok"), COMPLETED))
    router = await open_router(world)
    await router.generate(world.ref("one"), max_output_token_count=1)
    await router.generate(world.ref("one"), max_output_token_count=9999)
    assert [body["max_output_tokens"] for body in world.provider.bodies] == [16, 4096]


@pytest.mark.parametrize(
    ("events", "stop", "text"),
    [
        ((*said("Hel"), incomplete("max_output_tokens")), "LENGTH", "Hel"),
        ((*said("Hel"), incomplete("content_filter")), "REFUSAL", "Hel"),
        ((*declined("I can", "not."), COMPLETED), "REFUSAL", "I cannot."),
        ((said("All at once.")[-1], COMPLETED), "END", "All at once."),
    ],
)
async def test_Generate__why_responses_stopped(
    world: World, events: tuple[dict[str, Any], ...], stop: str, text: str
) -> None:
    world.provider.on("one", responses(*events))
    answered = await (await open_router(world)).generate(world.ref("one"))
    assert answered.text == text
    assert answered.completion.stop_reason == generation_pb2.StopReason.Value(f"STOP_REASON_{stop}")


@pytest.mark.parametrize(
    ("answering", "reason"),
    [
        (RATE_LIMITED, "RATE_LIMIT"),
        (
            openai_error(429, "You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
            "BILLING",
        ),
        (openai_error(401, "Incorrect API key provided", "invalid_request_error", "invalid_api_key"), "AUTH"),
        (
            openai_error(404, "The model `one` does not exist", "invalid_request_error", "model_not_found"),
            "MODEL_NOT_FOUND",
        ),
        (
            openai_error(
                400, "Unknown parameter: 'input[1].x'.", "invalid_request_error", "unknown_parameter"
            ),
            "FORMAT",
        ),
        (error(502, "<html><title>502 Bad Gateway</title></html>"), "SERVER_ERROR"),
        (
            responses(failed("server_error", "An error occurred while processing your request.")),
            "SERVER_ERROR",
        ),
        (
            responses(failed("rate_limit_exceeded", "Rate limit reached for one in organization org-x")),
            "RATE_LIMIT",
        ),
        (
            responses(
                {"type": "error", "code": "insufficient_quota", "message": "You exceeded it.", "param": None}
            ),
            "BILLING",
        ),
        (
            raw_sse(
                'event: error\ndata: {"type":"error","sequence_number":2,"error":{"type":"too_many_requests",'
                '"code":"too_many_requests","message":"Too Many Requests","param":null}}\n\n'
            ),
            "RATE_LIMIT",
        ),
        (responses(), "TIMEOUT"),
        (responses(COMPLETED), "EMPTY_RESPONSE"),
        (responses(*reasoned("hm", "gAAA"), COMPLETED), "EMPTY_RESPONSE"),
        (raw_sse('event: response.created\ndata: {"type": "respon\n\n'), "SERVER_ERROR"),
        (raw_sse('data: {"type":"response.output_item.done"}\n\n'), "SERVER_ERROR"),
        (raw_sse("data: [1]\n\n"), "SERVER_ERROR"),
    ],
)
async def test_Generate__judges_what_responses_really_answer(
    world: World, answering: Answering, reason: str
) -> None:
    world.provider.on("one", answering)
    world.provider.on("claude", named_sse(*anthropic_answer()))
    answered = await (await open_router(world)).generate(world.ref("one"), f"{world.anthropic}/claude")
    assert answered.text == "I read it."
    assert answered.verdicts[0] == ("one", "FAILED", reason)


@pytest.mark.parametrize(
    "answering",
    [
        openai_error(
            400,
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            "invalid_request_error",
            "context_length_exceeded",
        ),
        # Not in the SDK's list of codes.
        raw_sse(
            f"data: {json.dumps(failed('context_length_exceeded', 'Your input exceeds the context window.'))}\n\n"
        ),
        responses(incomplete("content_filter")),
        responses(failed("image_content_policy_violation", "The image was rejected by the safety system.")),
    ],
)
async def test_Generate__a_request_at_fault_at_responses_burns_nobody(
    world: World, answering: Answering
) -> None:
    world.provider.on("one", answering)
    router = await open_router(world)
    assert (await router.generate(world.ref("one"), world.ref("two"))).refused.reason is Reason.MODEL_REFUSED
    assert await router.explain(world.ref("one"), strict=True) == [("one", "READY")]


async def test_Generate__responses_that_break_within_the_answer_are_not_spliced(world: World) -> None:
    begun = [*CREATED, *said("Hel", "lo")[:3]]
    world.provider.on("one", cut_after(*numbered(*begun)))
    refused = (await (await open_router(world)).generate(world.ref("one"), world.ref("two"))).refused
    assert (refused.reason, refused.facts["sent_text_bytes"]) == (Reason.STREAM_BROKEN, "3")
    assert world.provider.asked("two") == 0


@pytest.mark.parametrize(
    ("code", "text", "failover_reason", "may_answer_later"),
    [
        ("server_error", "oops", "SERVER_ERROR", True),
        ("invalid_prompt", "The model does not exist.", "MODEL_NOT_FOUND", False),
    ],
)
async def test_Generate__responses_that_fail_within_the_answer_are_not_spliced(
    world: World, code: str, text: str, failover_reason: str, may_answer_later: bool
) -> None:
    broken = numbered(*CREATED, *said("Hel", "lo")[:3], failed(code, text))
    world.provider.on("one", slowly(*broken))
    refused = (await (await open_router(world)).generate(world.ref("one"), world.ref("two"))).refused
    assert (refused.reason, refused.facts["failover_reason"]) == (Reason.STREAM_BROKEN, failover_reason)
    assert is_transient(refused) is may_answer_later


async def test_Generate__responses_may_come_slowly_and_in_torn_packets(world: World) -> None:
    world.provider.on("one", slowly(*numbered(*CREATED, *said("Hel", "lo."), COMPLETED)))
    answered = await (await open_router(world)).generate(world.ref("one"))
    assert answered.text == "Hello."
    assert answered.kinds.count("text_delta") == 2


async def test_Generate__responses_end_at_their_last_event(world: World) -> None:
    world.provider.on("one", Stall(tuple(numbered(*CREATED, *said("Hello."), COMPLETED))))
    answered = await (await open_router(world, idle_timeout_seconds=600)).generate(world.ref("one"))
    assert answered.text == "Hello."
    assert answered.completion.stop_reason == generation_pb2.STOP_REASON_END


async def test_Generate__stalled_responses_are_cut_and_a_caller_who_leaves_cancels_them(world: World) -> None:
    begun = tuple(numbered(*CREATED, *said("Hel", "lo")[:3]))
    stall, other = Stall(begun), Stall(begun)
    world.provider.on("one", stall, other)
    router = await open_router(world, idle_timeout_seconds=1.0)
    assert (await router.generate(world.ref("one"))).refused.reason is Reason.STREAM_BROKEN
    await stall.hung_up.wait()
    patient = await open_router(world, idle_timeout_seconds=3600)
    await patient.hang_up_after(2, world.ref("one"), other.reached.wait)
    async with asyncio.timeout(60):
        await other.hung_up.wait()


async def test_ListModels__lists_the_api(world: World) -> None:
    router = await open_router(world)
    models = {
        info.model: info.api for info in (await router.call("ListModels", pb.ListModelsRequest())).models
    }
    assert (models[world.ref("one")], models[world.ref("two")]) == (
        routing_pb2.MODEL_API_RESPONSES,
        routing_pb2.MODEL_API_CHAT,
    )
    assert models[f"{world.anthropic}/claude"] == routing_pb2.MODEL_API_UNSPECIFIED
