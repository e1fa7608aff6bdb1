"""A cooldown affects every tenant: text of the caller that a provider repeats causes none."""

import json
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_core.reasons import Reason

from tests.support.model_router.cooldowns import list_cooldowns
from tests.support.model_router.fixtures import (
    World,
    assistant,
    call_block,
    image_block,
    user,
)
from tests.support.model_router.provider import anthropic_answer, chat, error, named_sse, openai_error, sse

LIMIT = "billing hard limit reached"


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*chat("two")))
    return world


def refused(message: str, **fields: Any) -> Any:
    return error(400, {"error": {"message": message, "type": "invalid_request_error", **fields}})


def call_of(arguments: str, call_id: str = "c1") -> message_pb2.Message:
    block = f'{{"type":"toolCall","id":"{call_id}","name":"read","arguments":{arguments}}}'
    return assistant(call_block(call_id, "read", block))


def tool(name: str, parameters: str = "{}") -> generation_pb2.ToolDeclaration:
    return generation_pb2.ToolDeclaration(name=name, parameters_json=parameters)


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        (f"Invalid content: {LIMIT} and mo...", {"messages": [user(f"{LIMIT} and more of the same")]}),
        (f"Invalid system prompt: {LIMIT}", {"system_prompt": f"It is {LIMIT}."}),
        # As JSON spells it, the request does not say it.
        (f"Invalid arguments: {{'path': '{LIMIT}'}}", {"messages": [call_of(r'{"path":"\u0062illing hard\tlimit reached"}')]}),
        (f"Invalid arguments: {LIMIT}", {"messages": [call_of(json.dumps(json.dumps({"path": LIMIT})))]}),
        (f"Invalid schema: {LIMIT}", {"tools": [tool("read", json.dumps({"description": LIMIT}))]}),
        ("Invalid tool: insufficient_quota", {"tools": [tool("insufficient_quota")]}),
        ("No result for the call: x509", {"messages": [call_of("{}", "x509"), user("go on")]}),
        ("Not an image: image/x509", {"messages": [user(message_pb2.ContentBlock(image=message_pb2.Image(mime_type="image/x509")))]}),
        # Partly the provider's own words.
        ("Your maximum allowed names are not 'spending limit'", {"messages": [user("spending limit")]}),
        ("There is no user called disabled", {"tools": [tool("disabled")]}),
    ],
    ids=range(10),
)  # fmt: skip
@pytest.mark.parametrize("where", ["answer", "stream"])
async def test_Generate__what_a_provider_repeats_of_a_request_rests_nothing(
    world: World, said: str, asked: dict[str, Any], where: str
) -> None:
    broken = sse({"error": {"message": said, "type": "invalid_request_error", "code": 400}})
    world.provider.on("one", refused(said) if where == "answer" else broken)
    router = await world.router()
    answered = await router.generate(world.ref("one"), world.ref("two"), **asked)
    assert answered.refusal is None or answered.refusal.reason is Reason.MODEL_REFUSED
    assert await list_cooldowns(router) == []
    world.provider.on("one", sse(*chat("one")))
    other = await world.router(world.config())
    assert (await other.generate(world.ref("one"), strict=True)).text == "one"


BROKEN_UP = "insufficient \n credits"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (BROKEN_UP, f"Invalid content: {BROKEN_UP} ..."),
        (BROKEN_UP, f"Invalid content: {BROKEN_UP!r} ..."),
        (BROKEN_UP, f"Invalid content: {json.dumps(json.dumps(BROKEN_UP))} ..."),
        ("insufficient é credits", "Invalid content: insufficient é credits ..."),
        ("insufficient é credits", "Invalid content: insufficient ? credits ..."),
        ("insufficient 😀 credits", f"Invalid content: {json.dumps('insufficient 😀 credits')} ..."),
        ("insufficient <b> credits", r"Invalid content: insufficient \u003cb\u003e credits ..."),
        ("insufficient <b> credits", "Invalid content: insufficient &lt;b&gt; credits ..."),
        ("insuf\u200bficient credits", "Invalid content: insufficient credits ..."),
        (r"insufficient \n credits", f"Invalid content: {BROKEN_UP} ..."),
        # Behind its backslash, the end of a line begins a word.
        ("\no credits", f"Invalid content: {json.dumps(chr(10) + 'o credits')} ..."),
        (r"\no credits", "Invalid content: no credits ..."),
        ("x" * 9000 + "\no credits", "Invalid content: x" + r"\no credits " + "x" * 9000),
    ],
    ids=range(13),
)
@pytest.mark.parametrize("status", [400, 429])
async def test_Generate__what_a_provider_repeats_is_known_however_it_is_spelled(
    world: World, asked: str, said: str, status: int
) -> None:
    answer = error(status, {"error": {"message": said, "type": "invalid_request_error"}})
    world.provider.on("one", answer)
    router = await world.router()
    await router.generate(world.ref("one"), strict=True, messages=[user(asked)])
    assert await list_cooldowns(router) == ([] if status == 400 else [(1, "RATE_LIMIT")])


async def test_Generate__what_is_too_long_to_be_opened_is_not_read_as_escapes(world: World) -> None:
    said = {
        "error": {"message": "Invalid content: \no credits " + "x" * 9000, "type": "invalid_request_error"}
    }
    world.provider.on("one", error(400, said))
    router = await world.router()
    await router.generate(world.ref("one"), strict=True, messages=[user("\no credits")])
    assert await list_cooldowns(router) == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Invalid content: 'organization has been suspended'", "BILLING"),
        ("Invalid content: 'the daily usage limit'", "BILLING"),
        ("Try again after the daily usage limit resets", "RATE_LIMIT"),
        ("Your organization has been disabled", "AUTH_PERMANENT"),
    ],
)
async def test_Generate__what_is_repeated_under_402_is_no_evidence_either(
    world: World, said: str, reason: str
) -> None:
    world.provider.on("one", error(402, {"error": {"message": said, "type": "invalid_request_error"}}))
    router = await world.router()
    asked = "My organization has been suspended by the daily usage limit."
    await router.generate(world.ref("one"), strict=True, messages=[user(asked)])
    assert [reason for _, reason in await list_cooldowns(router)] == [reason]


@pytest.mark.parametrize(
    "said",
    [
        {"message": "Invalid content: it failed with 402 ..."},
        {"message": "Invalid content", "param": {"status": 402}},
        {"message": "Invalid content: \notFoundError", "param": {"status": 402}},
    ],
)
async def test_Generate__nor_is_a_status_or_a_name_from_the_request(
    world: World, said: dict[str, Any]
) -> None:
    world.provider.on("one", sse({"error": said}))
    router = await world.router()
    asked = "It failed with 402.\notFoundError"
    await router.generate(world.ref("one"), strict=True, messages=[user(asked)])
    assert await list_cooldowns(router) == []


@pytest.mark.parametrize("said", [{"message": "HTTP 402"}, {"message": "no", "code": 402}])
async def test_Generate__a_status_in_the_streams_own_error_counts(world: World, said: dict[str, Any]) -> None:
    world.provider.on("one", sse({"error": said}))
    router = await world.router()
    await router.generate(world.ref("one"), strict=True, messages=[user("What does 402 mean?")])
    assert await list_cooldowns(router) == [(2, "BILLING")]


@pytest.mark.parametrize(
    "answering",
    [
        refused(
            "Your credit balance is too low to access the API. Please go to Plans & Billing to purchase credits."
        ),
        refused("Oops", code="insufficient_quota"),
        openai_error(404, "This account is not active: unpaid invoices.", "x", None),
        sse({"error": {"message": "Your credit balance is too low", "type": "invalid_request_error"}}),
    ],
)
async def test_Generate__what_a_provider_says_of_the_account_still_rests_the_credential(
    world: World, answering: Any
) -> None:
    world.provider.on("one", answering)
    router = await world.router()
    said = "What is insufficient_quota? And why would I purchase credits?"
    assert (
        await router.generate(world.ref("one"), world.ref("two"), messages=[user(said)])
    ).refusal is not None
    assert await list_cooldowns(router) == [(2, "BILLING")]


async def test_Generate__a_response_is_never_a_certificate_error(world: World) -> None:
    claude = f"{world.anthropic}/claude"
    said = {"type": "error", "error": {"type": "api_error", "message": "x509: certificate has expired"}}
    world.provider.on("claude", error(500, said), named_sse(*anthropic_answer()))
    router = await world.router()
    await router.generate(claude, strict=True)
    assert await list_cooldowns(router) == [(1, "SERVER_ERROR")]


@pytest.mark.parametrize(
    "mime_type", ["image/x: billing hard limit reached", "image", "image/png; q=1", "", "image/é"]
)
async def test_Generate__the_type_of_an_image_is_a_type(world: World, mime_type: str) -> None:
    router = await world.router()
    odd = image_block()
    odd.image.mime_type = mime_type
    answered = await router.generate(world.ref("two"), messages=[user("look", image_block(), odd)])
    assert answered.refused.reason is Reason.INVALID_REQUEST
    assert "messages[0].content[2].image.mime_type" in str(answered.refused)
    named = generation_pb2.NamedImage(name="a.png", image=odd.image)
    answered = await router.generate(world.ref("two"), named_images=[named])
    assert "named_images[0].image.mime_type" in str(answered.refused)
    assert world.provider.bodies == []


DELAY = '"retryDelay": "86400s"'
REPEATED = {
    "error": {"message": f"Rate limit reached, see {DELAY}"},
    "request": {"tools": [{"retryDelay": "86400s"}]},
}


@pytest.mark.parametrize(
    "answering",
    [
        error(429, f"Too many requests: {DELAY}"),
        error(429, REPEATED),
        error(429, [f"Too many requests: {DELAY}"]),
    ],
    ids=["text", "another-place", "no-error"],
)
async def test_Generate__a_delay_that_the_provider_repeats_makes_no_rest_longer(
    world: World, answering: Any
) -> None:
    world.provider.on("one", answering)
    router = await world.router()
    refused = (await router.generate(world.ref("one"), strict=True, messages=[user(DELAY)])).refused
    assert 0 < (refused.retry_after_seconds or 0) <= 60
    assert await list_cooldowns(router) == [(1, "RATE_LIMIT")]
