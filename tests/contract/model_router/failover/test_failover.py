"""Failing candidates: before the first output the next one takes over, and answers are never
joined.
"""

import asyncio

import pytest
from spawnmesh_core.errors import is_transient
from spawnmesh_core.reasons import Reason

from tests.support.model_router.fixtures import World
from tests.support.model_router.provider import (
    BROKEN,
    OVERLOADED,
    RATE_LIMITED,
    Answering,
    Stall,
    anthropic_answer,
    chat,
    chunk,
    cut_after,
    error,
    named_sse,
    openai_error,
    raw_sse,
    sse,
    tool_part,
)

START = chunk({"role": "assistant", "content": ""})
HELLO = chunk({"content": "Hello"})


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*chat("from two")))
    return world


async def test_Generate__the_next_candidate_takes_over(world: World) -> None:
    world.provider.on("one", RATE_LIMITED)
    answered = await (await world.router()).generate(world.ref("one"), world.ref("two"))
    assert answered.kinds == [
        "attempt_started",
        "attempt_failed",
        "attempt_started",
        "text_delta",
        "completion",
    ]
    assert answered.text == "from two"
    assert answered.verdicts == [("one", "FAILED", "RATE_LIMIT"), ("two", "ANSWERED", "UNSPECIFIED")]
    first, second = answered.completion.attempts
    assert (first.number, first.http_status, second.number, second.http_status) == (1, 429, 2, 0)
    assert answered.events[1].attempt_failed == first
    assert (
        first.start_time.ToNanoseconds()
        <= first.end_time.ToNanoseconds()
        <= second.start_time.ToNanoseconds()
    )
    assert answered.completion.verdicts[0].detail == "the provider answered HTTP 429"


@pytest.mark.parametrize(
    ("answering", "reason"),
    [
        (BROKEN, "SERVER_ERROR"),
        (OVERLOADED, "OVERLOADED"),
        (openai_error(429, "You exceeded your current quota, check your plan", "insufficient_quota", "insufficient_quota"), "BILLING"),
        (openai_error(401, "Incorrect API key provided", "invalid_request_error", "invalid_api_key"), "AUTH"),
        (openai_error(404, "The model `one` does not exist", "invalid_request_error", "model_not_found"), "MODEL_NOT_FOUND"),
        (openai_error(400, "Unknown parameter: 'top_q'.", "invalid_request_error", "unknown_parameter"), "FORMAT"),
        (error(502, "<html><body>Bad Gateway</body></html>"), "SERVER_ERROR"),
        (cut_after(), "TIMEOUT"),
        (cut_after(START), "TIMEOUT"),
        (cut_after(START, tool_part(0, '{"a"', "call_a", "read")), "TIMEOUT"),
        (raw_sse("data: {not json\n\n"), "SERVER_ERROR"),
        (raw_sse('data: {"choices": 7}\n\n'), "SERVER_ERROR"),
        (raw_sse('data: {"error": {"message": "Overloaded", "type": "overloaded_error"}}\n\n'), "OVERLOADED"),
        (sse(START), "TIMEOUT"),
        (sse(*chat()), "EMPTY_RESPONSE"),
    ],
)  # fmt: skip
async def test_Generate__judges_what_providers_really_answer(
    world: World, answering: Answering, reason: str
) -> None:
    world.provider.on("one", answering)
    world.provider.on("claude", named_sse(*anthropic_answer()))
    answered = await (await world.router()).generate(world.ref("one"), f"{world.anthropic}/claude")
    assert answered.verdicts == [("one", "FAILED", reason), ("claude", "ANSWERED", "UNSPECIFIED")]


async def test_Generate__nobody_listens_at_the_address(world: World) -> None:
    config = world.config()
    config["providers"][world.anthropic]["base_url"] = "http://127.0.0.1:9"
    answered = await (await world.router(config)).generate(f"{world.anthropic}/claude", world.ref("two"))
    assert answered.verdicts[0] == ("claude", "FAILED", "TIMEOUT")
    assert answered.text == "from two"


@pytest.mark.parametrize(
    ("answering", "reason"),
    [
        (openai_error(400, "image exceeds 5 MB maximum", "invalid_request_error", None), "NO_FAILOVER"),
        (openai_error(400, "This model's maximum context length is 8192 tokens", "x", "context_length_exceeded"), "CONTEXT_OVERFLOW"),
        (sse(START, chunk({}, "content_filter")), "NO_FAILOVER"),
    ],
)  # fmt: skip
async def test_Generate__a_request_at_fault_burns_nobody(
    world: World, answering: Answering, reason: str
) -> None:
    world.provider.on("one", answering, sse(*chat("better")))
    router = await world.router()
    refused = (await router.generate(world.ref("one"), world.ref("two"))).refused
    assert refused.reason is Reason.MODEL_REFUSED
    assert refused.facts["failover_reason"] == reason
    assert refused.facts["candidate_1"] == f"{world.ref('one')} FAILED {reason}"
    assert refused.facts["candidate_2"] == f"{world.ref('two')} NOT_NEEDED"
    assert world.provider.asked("two") == 0
    assert (await router.generate(world.ref("one"))).text == "better"


async def test_Generate__all_candidates_failed(world: World) -> None:
    world.provider.on("one", RATE_LIMITED)
    world.provider.on("two", BROKEN)
    refused = (await (await world.router()).generate(world.ref("one"), world.ref("two"))).refused
    assert refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert refused.facts["candidate_1"] == f"{world.ref('one')} FAILED RATE_LIMIT"
    assert refused.facts["candidate_2"] == f"{world.ref('two')} FAILED SERVER_ERROR"
    assert refused.retry_after_seconds is not None
    assert 25 < refused.retry_after_seconds <= 30


async def test_Generate__no_next_one_after_the_first_output(world: World) -> None:
    world.provider.on("one", cut_after(START, HELLO))
    router = await world.router()
    answered = await router.generate(world.ref("one"), world.ref("two"))
    assert answered.text == "Hello"
    assert answered.refused.reason is Reason.STREAM_BROKEN
    assert (answered.refused.facts["sent_text_bytes"], answered.refused.facts["failover_reason"]) == (
        "5",
        "TIMEOUT",
    )
    assert is_transient(answered.refused)
    assert world.provider.asked("two") == 0
    # The next call reaches the next candidate.
    assert (await router.generate(world.ref("one"), world.ref("two"))).text == "from two"


async def test_Generate__a_broken_stream_leaves_the_only_candidate_to_the_next_try(world: World) -> None:
    world.provider.on("one", cut_after(START, HELLO), sse(*chat("whole")))
    router = await world.router()
    assert (await router.generate(world.ref("one"))).refused.reason is Reason.STREAM_BROKEN
    assert (await router.generate(world.ref("one"))).text == "whole"


async def test_Generate__a_stalled_stream_is_cut(world: World) -> None:
    stall = Stall((START, HELLO))
    world.provider.on("one", stall)
    router = await world.router(idle_timeout_seconds=1.0)
    answered = await router.generate(world.ref("one"), world.ref("two"))
    assert (answered.text, answered.refused.reason) == ("Hello", Reason.STREAM_BROKEN)
    async with asyncio.timeout(60):
        await stall.hung_up.wait()


@pytest.mark.parametrize("begin", [True, False])
async def test_Generate__a_silent_candidate_is_left_for_the_next(world: World, begin: bool) -> None:
    world.provider.on("one", Stall(begin=begin))
    router = await world.router(attempt_timeout_seconds=2.0)
    answered = await router.generate(world.ref("one"), world.ref("two"))
    assert answered.verdicts[0] == ("one", "FAILED", "TIMEOUT")
    assert answered.completion.verdicts[0].detail == "no answer in time"


async def test_Generate__the_deadline_bounds_the_chain_and_causes_no_cooldown(world: World) -> None:
    world.provider.on("one", Stall(begin=False), sse(*chat("later")))
    router = await world.router()
    refused = (await router.generate(world.ref("one"), world.ref("two"), timeout=0.5)).refused
    assert refused.reason is Reason.DEADLINE_EXCEEDED
    assert (await router.generate(world.ref("one"))).text == "later"


async def test_Generate__a_caller_who_hangs_up_cancels_the_upstream_call(world: World) -> None:
    stall = Stall((START, HELLO))
    world.provider.on("one", stall, sse(*chat("later")))
    router = await world.router(idle_timeout_seconds=3600)
    await router.hang_up_after(2, world.ref("one"), stall.reached.wait)
    async with asyncio.timeout(60):
        await stall.hung_up.wait()
    assert (await router.generate(world.ref("one"))).text == "later"


async def test_Generate__a_caller_who_hangs_up_before_the_answer_begins(world: World) -> None:
    stall = Stall(begin=False)
    world.provider.on("one", stall, sse(*chat("later")))
    router = await world.router(attempt_timeout_seconds=3600)
    await router.hang_up_after(1, world.ref("one"), stall.reached.wait)
    async with asyncio.timeout(60):
        await stall.hung_up.wait()
    assert (await router.generate(world.ref("one"))).text == "later"


async def test_Generate__a_transient_failure_is_tried_again_at_the_same_candidate(world: World) -> None:
    world.provider.on("one", BROKEN, sse(*chat("recovered")))
    router = await world.router(tries_before_failover=2)
    answered = await router.generate(world.ref("one"), world.ref("two"))
    assert answered.text == "recovered"
    assert answered.kinds == [
        "attempt_started",
        "attempt_failed",
        "attempt_started",
        "text_delta",
        "completion",
    ]
    assert answered.verdicts == [("one", "ANSWERED", "UNSPECIFIED"), ("two", "NOT_NEEDED", "UNSPECIFIED")]
    assert world.provider.asked("two") == 0


async def test_Generate__a_rate_limit_is_waited_out_only_where_nobody_else_can_answer(world: World) -> None:
    limited = openai_error(
        429, "Rate limit reached", "requests", "rate_limit_exceeded", retry_after_ms="1200"
    )
    world.provider.on("one", limited, sse(*chat("after the wait")))
    router = await world.router(tries_before_failover=2, tries_at_last_candidate=2)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    assert (await router.generate(world.ref("one"), strict=True)).text == "after the wait"
    assert loop.time() - begin >= 1.2
    world.provider.on("one", limited)
    assert (await router.generate(world.ref("one"), world.ref("two"))).text == "from two"
    assert world.provider.asked("one") == 3


async def test_Generate__a_wait_that_outlasts_the_deadline_is_not_begun(world: World) -> None:
    limited = openai_error(429, "Rate limit reached", "requests", "rate_limit_exceeded", retry_after="500")
    world.provider.on("one", limited)
    router = await world.router(tries_at_last_candidate=5)
    refused = (await router.generate(world.ref("one"))).refused
    assert refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert refused.retry_after_seconds is not None
    assert 400 < refused.retry_after_seconds <= 500
