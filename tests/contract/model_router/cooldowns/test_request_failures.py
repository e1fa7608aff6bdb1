"""A failure that concerns only one request causes no cooldown."""

from typing import Any

import pytest

from tests.support.model_router.cooldowns import list_cooldowns
from tests.support.model_router.fixtures import World
from tests.support.model_router.gemini import open_gemini_router, said, streamed
from tests.support.model_router.provider import Answering, chat, chunk, openai_error, sse, tool_part

TOO_LARGE = openai_error(
    429,
    "Request too large for gpt-4o in organization org-abc on tokens per min (TPM): Limit 30000, Requested 91234. "
    "The input or output tokens must be reduced in order to run successfully.",
    "tokens",
    "rate_limit_exceeded",
)
NOTHING = sse(*chat())
NAMELESS = sse(tool_part(0, "{}", "c1"), chunk({}, "tool_calls"))


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*chat("two")))
    return world


@pytest.mark.parametrize(
    ("answering", "reason"),
    [(TOO_LARGE, "RATE_LIMIT"), (NOTHING, "EMPTY_RESPONSE"), (NAMELESS, "SERVER_ERROR")],
    ids=["too-large-for-a-minute", "nothing", "a-call-of-no-tool"],
)
async def test_Generate__what_one_request_causes_rests_nothing(
    world: World, answering: Answering, reason: str
) -> None:
    world.provider.on("one", answering, sse(*chat("one")))
    router = await world.router()
    answered = await router.generate(world.ref("one"), world.ref("two"))
    assert answered.verdicts == [("one", "FAILED", reason), ("two", "ANSWERED", "UNSPECIFIED")]
    assert await list_cooldowns(router) == []
    other = await world.router(tenant="t-other")
    assert (await other.generate(world.ref("one"), strict=True)).text == "one"


async def test_Generate__a_call_that_gemini_cannot_read_rests_nothing(world: World) -> None:
    world.provider.on("flash", streamed(said({"text": ""}, finish="MALFORMED_FUNCTION_CALL")))
    router, model = await open_gemini_router(world)
    answered = await router.generate(model, world.ref("two"))
    assert answered.verdicts[:2] == [("flash", "FAILED", "SERVER_ERROR"), ("two", "ANSWERED", "UNSPECIFIED")]
    assert await list_cooldowns(router) == []


@pytest.mark.parametrize(("answering", "times"), [(TOO_LARGE, 1), (NOTHING, 2)])
async def test_Generate__what_is_too_large_for_a_minute_is_not_sent_again(
    world: World, answering: Any, times: int
) -> None:
    world.provider.on("one", answering)
    router = await world.router(tries_at_last_candidate=2)
    assert (await router.generate(world.ref("one"), strict=True)).refusal is not None
    assert world.provider.asked("one") == times


async def test_Generate__a_minute_that_is_used_up_still_rests_the_model(world: World) -> None:
    message = (
        "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000."
    )
    world.provider.on("one", openai_error(429, message, "tokens", "rate_limit_exceeded"))
    router = await world.router()
    assert (await router.generate(world.ref("one"), strict=True)).refusal is not None
    assert await list_cooldowns(router) == [(1, "RATE_LIMIT")]
