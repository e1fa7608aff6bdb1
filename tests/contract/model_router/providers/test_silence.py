"""Silence during an answer: pings count as events, and a long thought causes no cooldown."""

import asyncio
import json

import pytest
from aiohttp import web

from tests.support.model_router.cooldowns import list_cooldowns
from tests.support.model_router.fixtures import World
from tests.support.model_router.provider import Answering, Stall, anthropic_answer, chat, chunk, sse

IDLE = 3.0
BEFORE_THE_THOUGHT = 3
START = chunk({"role": "assistant", "content": ""})


def thinking_in_silence(ping_count: int) -> Answering:
    """Send only pings, ten in each idle timeout, as Anthropic does while a model thinks."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        events = anthropic_answer(stop="end_turn")
        pings = [{"type": "ping"}] * ping_count
        for event in [*events[:BEFORE_THE_THOUGHT], *pings, *events[BEFORE_THE_THOUGHT:]]:
            if event["type"] == "ping":
                await asyncio.sleep(IDLE / 10)
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await response.write_eof()
        return response

    return answer


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*chat("two")))
    return world


async def test_Generate__a_model_that_thinks_while_its_provider_pings_is_waited_for(world: World) -> None:
    world.provider.on("claude", thinking_in_silence(15))
    router = await world.router(idle_timeout_seconds=IDLE)
    answered = await router.generate(f"{world.anthropic}/claude", strict=True)
    assert answered.text == "I read it."
    assert answered.kinds.count("attempt_failed") == 0


async def test_Generate__pings_are_waited_for_no_longer_than_the_caller_wants(world: World) -> None:
    world.provider.on("claude", thinking_in_silence(1000))
    router = await world.router(idle_timeout_seconds=IDLE)
    refused = (await router.generate(f"{world.anthropic}/claude", strict=True, timeout=1.5 * IDLE)).refused
    assert refused.reason.value == "DEADLINE_EXCEEDED"
    assert await list_cooldowns(router) == []


async def test_Generate__a_silence_within_an_answer_that_shows_nothing_yet_rests_no_model(
    world: World,
) -> None:
    world.provider.on("claude", Stall(tuple(anthropic_answer()[:BEFORE_THE_THOUGHT])))
    world.provider.on("one", Stall((START,)))
    router = await world.router(idle_timeout_seconds=1.0)
    answered = await router.generate(f"{world.anthropic}/claude", world.ref("one"), world.ref("two"))
    assert [reason for _, _, reason in answered.verdicts] == ["TIMEOUT", "TIMEOUT", "UNSPECIFIED"]
    assert await list_cooldowns(router) == []


async def test_Generate__a_provider_that_does_not_begin_to_answer_rests_its_model(world: World) -> None:
    world.provider.on("one", Stall())
    router = await world.router(attempt_timeout_seconds=2.0, idle_timeout_seconds=1.0)
    assert (await router.generate(world.ref("one"), world.ref("two"))).text == "two"
    assert await list_cooldowns(router) == [(1, "TIMEOUT")]


async def test_Generate__a_silence_behind_what_was_shown_leads_the_next_try_to_another_model(
    world: World,
) -> None:
    world.provider.on("one", Stall((START, chunk({"content": "Hello"}))))
    router = await world.router(idle_timeout_seconds=1.0)
    assert (await router.generate(world.ref("one"), world.ref("two"))).refusal is not None
    assert (await router.generate(world.ref("one"), world.ref("two"))).text == "two"


@pytest.mark.parametrize("begin", [True, False])
async def test_Generate__a_hung_provider_is_called_once_before_failover(world: World, begin: bool) -> None:
    world.provider.on("one", Stall(begin=begin))
    router = await world.router(attempt_timeout_seconds=2.0, tries_before_failover=3)
    assert (await router.generate(world.ref("one"), world.ref("two"))).text == "two"
    assert world.provider.asked("one") == 1
