"""Gemini's wire format: answers, tools, images, thoughts, refusals and its real error bodies."""

import asyncio
import secrets
from base64 import b64encode
from typing import Any

import pytest
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.reasons import Reason

from tests.support.model_router.fixtures import (
    CANARY,
    PNG,
    World,
    assistant,
    call_block,
    image_block,
    tool_result,
    user,
)
from tests.support.model_router.gemini import open_gemini_router, said, streamed
from tests.support.model_router.provider import Answering, Stall, chat, error, sse
from tests.support.model_router.spending import reasoning_tokens

READ = generation_pb2.ToolDeclaration(
    name="read",
    description="Reads.",
    parameters_json='{"type":"object","properties":{"path":{"type":"string"}}}',
)


USAGE = {
    "promptTokenCount": 20,
    "candidatesTokenCount": 4,
    "thoughtsTokenCount": 3,
    "cachedContentTokenCount": 8,
    "totalTokenCount": 27,
}


def failed(code: int, message: str, status: str, *details: dict[str, Any]) -> Answering:
    return error(
        code, {"error": {"code": code, "message": message, "status": status, "details": list(details)}}
    )


async def test_Generate__gemini_answers_in_pieces(world: World) -> None:
    world.provider.on(
        "flash", streamed(said({"text": "Hel"}), said({"text": "lo"}, finish="STOP", usageMetadata=USAGE))
    )
    router, model = await open_gemini_router(world)
    answered = await router.generate(model, system_prompt="Be brief.", max_output_token_count=99)
    assert answered.text == "Hello"
    usage = answered.completion.message.usage
    assert (usage.input_token_count, usage.output_token_count, usage.cache_read_token_count) == (20, 7, 8)
    assert answered.completion.stop_reason == generation_pb2.STOP_REASON_END
    assert reasoning_tokens(router) == 3
    [body] = world.provider.bodies
    assert "Be brief." in str(body["systemInstruction"])
    assert body["generationConfig"]["maxOutputTokens"] == 99
    assert world.provider.keys == [CANARY]


async def test_Generate__gemini_calls_tools_and_gets_signatures_back(world: World) -> None:
    signature = b64encode(b"signed thought").decode()
    call = {"functionCall": {"name": "read", "args": {"path": "a.txt"}}, "thoughtSignature": signature}
    world.provider.on(
        "flash",
        streamed(said({"text": "Let me think.", "thought": True}), said(call, finish="STOP")),
        streamed(said({"text": "done"}, finish="STOP")),
    )
    router, model = await open_gemini_router(world)
    first = (await router.generate(model, tools=[READ])).completion
    assert first.stop_reason == generation_pb2.STOP_REASON_TOOL_USE
    assert [block.WhichOneof("block") for block in first.message.content] == ["tool_call", "thinking"]
    made = first.message.content[0].tool_call
    result = tool_result(made.tool_call_id, "the file", image_block())
    await router.generate(model, messages=[user("read it"), first.message, result], tools=[READ])
    contents = world.provider.bodies[1]["contents"]
    assert [content["role"] for content in contents] == ["user", "model", "user"]
    [again] = contents[1]["parts"]
    assert (again["functionCall"]["args"], again["thoughtSignature"]) == ({"path": "a.txt"}, signature)
    answer, image = contents[2]["parts"]
    assert answer["functionResponse"]["response"] == {"output": "the file"}
    assert image["inlineData"]["data"] == b64encode(PNG).decode()


async def test_Generate__another_providers_call_is_read_by_gemini(world: World) -> None:
    world.provider.on("flash", streamed(said({"text": "ok"}, finish="STOP")))
    router, model = await open_gemini_router(world)
    block = call_block(
        "call_1", "read", '{"type":"toolCall","id":"call_1","name":"read","arguments":{"path":"b"}}'
    )
    messages = [user("go"), assistant("reading", block), tool_result("call_1", "no such file", failed=True)]
    assert (await router.generate(model, messages=messages)).text == "ok"
    contents = world.provider.bodies[0]["contents"]
    assert contents[1]["parts"][1]["functionCall"]["args"] == {"path": "b"}
    assert contents[2]["parts"][0]["functionResponse"]["response"] == {"error": "no such file"}


@pytest.mark.parametrize(
    ("levels", "marked"), [({"high": "high"}, True), ({"high": 2048}, False), ({}, False)]
)
async def test_Generate__gemini_gets_a_signature_for_calls_of_other_models(
    world: World, levels: dict[str, int | str], marked: bool
) -> None:
    world.provider.on("flash", streamed(said({"text": "ok"}, finish="STOP")))
    name, config = f"g{secrets.token_hex(4)}", world.config()
    config["providers"][name] = {
        "kind": "gemini",
        "base_url": world.provider.base_url,
        "credentials": ["env:KEY"],
    }
    config["models"][f"{name}/flash"] = {"context_window": 9000, "max_output": 8192, "thinking": levels}
    router = await world.router(config)
    own = b64encode(b"thought").decode()
    foreign = [
        call_block(f"c{number}", "read", f'{{"type":"toolUse","id":"c{number}","input":{{}}}}')
        for number in (1, 2)
    ]
    signed = call_block(
        "c3", "read", f'{{"type":"functionCall","id":"c3","args":{{}},"thoughtSignature":"{own}"}}'
    )
    messages = [
        user("go"),
        assistant("reading", *foreign),
        tool_result("c1", "one"),
        tool_result("c2", "two"),
        assistant(signed),
        tool_result("c3", "three"),
    ]
    assert (await router.generate(f"{name}/flash", messages=messages)).text == "ok"
    contents = world.provider.bodies[0]["contents"]
    text, first, second = contents[1]["parts"]
    assert ("thoughtSignature" in first) is marked
    assert not any("thoughtSignature" in part for part in (text, second))
    assert contents[3]["parts"][0]["thoughtSignature"] == own


@pytest.mark.parametrize(
    ("answering", "reason"),
    [
        (failed(429, "Resource has been exhausted (e.g. check quota).", "RESOURCE_EXHAUSTED"), "RATE_LIMIT"),
        (failed(503, "The model is overloaded. Please try again later.", "UNAVAILABLE"), "OVERLOADED"),
        (failed(400, "API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT"), "AUTH"),
        (failed(404, "models/flash is not found for API version v1beta", "NOT_FOUND"), "MODEL_NOT_FOUND"),
        (failed(500, "An internal error has occurred.", "INTERNAL"), "SERVER_ERROR"),
        (error(502, "<html><title>502 Bad Gateway</title></html>"), "SERVER_ERROR"),
        (streamed(said({"text": ""}, finish="MALFORMED_FUNCTION_CALL")), "SERVER_ERROR"),
        (streamed(said({"text": ""})), "TIMEOUT"),
        (streamed(said({"text": ""}, finish="STOP")), "EMPTY_RESPONSE"),
    ],
)
async def test_Generate__judges_what_gemini_really_answers(
    world: World, answering: Answering, reason: str
) -> None:
    world.provider.on("flash", answering)
    world.provider.on("two", sse(*chat("took over")))
    router, model = await open_gemini_router(world)
    answered = await router.generate(model, world.ref("two"))
    assert answered.text == "took over"
    assert answered.verdicts[0] == ("flash", "FAILED", reason)


@pytest.mark.parametrize(
    "answering",
    [
        streamed({"promptFeedback": {"blockReason": "SAFETY"}}),
        streamed(said({"text": ""}, finish="SAFETY")),
        failed(
            400,
            "The input token count (2000000) exceeds the maximum number of tokens allowed",
            "INVALID_ARGUMENT",
        ),
    ],
)
async def test_Generate__a_request_at_fault_at_gemini_burns_nobody(
    world: World, answering: Answering
) -> None:
    world.provider.on("flash", answering)
    router, model = await open_gemini_router(world)
    assert (await router.generate(model, world.ref("two"))).refused.reason is Reason.MODEL_REFUSED
    assert await router.explain(model) == [("flash", "READY"), ("one", "READY")]


async def test_Generate__the_retry_delay_in_geminis_body_is_kept(world: World) -> None:
    told = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "340s"}
    world.provider.on("flash", failed(429, "Quota exceeded for metric", "RESOURCE_EXHAUSTED", told))
    router, model = await open_gemini_router(world)
    refused = (await router.generate(model, strict=True)).refused
    assert 280 < (refused.retry_after_seconds or 0) <= 340


async def test_Generate__a_caller_who_hangs_up_cancels_the_call_of_gemini(world: World) -> None:
    stall = Stall((said({"text": "Hel"}),))
    world.provider.on("flash", stall)
    router, model = await open_gemini_router(world, idle_timeout_seconds=3600)
    await router.hang_up_after(2, model, stall.reached.wait)
    async with asyncio.timeout(60):
        await stall.hung_up.wait()
    assert await router.explain(model, fallbacks=pb.Fallbacks()) == [("flash", "READY")]


async def test_Generate__a_stalled_stream_of_gemini_is_cut(world: World) -> None:
    stall = Stall((said({"text": "Hel"}),))
    world.provider.on("flash", stall)
    router, model = await open_gemini_router(world, idle_timeout_seconds=1.0)
    refused = (await router.generate(model)).refused
    assert (refused.reason, refused.facts["sent_text_bytes"]) == (Reason.STREAM_BROKEN, "3")
    async with asyncio.timeout(60):
        await stall.hung_up.wait()
