"""A provider that sends endless, inflated, very deep or very wide bodies fails alone, and fills no
memory.
"""

from collections.abc import Callable

import pytest

from tests.support.model_router.fixtures import World
from tests.support.model_router.gemini import open_gemini_router
from tests.support.model_router.hostile import MIB, Flood, encoded, memory_bound, nested, wide
from tests.support.model_router.provider import BROKEN, Answering, chat, sse

KEPT_BYTES = 64 * MIB
SENT_BYTES = 48 * MIB
"""16 MiB that the router reads, and what the buffers of both sockets hold."""

FLOODS: dict[str, tuple[Callable[[], Flood], str]] = {
    "error": (lambda: Flood(500), "SERVER_ERROR"),
    "rate-limit": (lambda: Flood(429), "RATE_LIMIT"),
    "json": (lambda: Flood(begin=b'{"error": "'), "SERVER_ERROR"),
    "event": (lambda: Flood(content_type="text/event-stream", begin=b"data: "), "SERVER_ERROR"),
}
BOMBS: dict[str, tuple[Callable[[], Answering], str]] = {
    "error": (lambda: encoded(500), "SERVER_ERROR"),
    "rate-limit": (lambda: encoded(429), "RATE_LIMIT"),
    "json": (lambda: encoded(200), "SERVER_ERROR"),
    "events": (lambda: encoded(200, "text/event-stream"), "SERVER_ERROR"),
}
DEEP: dict[str, tuple[Callable[[], Answering], str]] = {
    "error": (lambda: nested(500), "SERVER_ERROR"),
    "json": (lambda: nested(200), "TIMEOUT"),
    "event": (
        lambda: nested(200, "text/event-stream", "event: message_delta\ndata: "),
        "SERVER_ERROR",
    ),
}
WIDE: dict[str, tuple[Callable[[], Answering], str]] = {
    "error": (lambda: wide(500), "SERVER_ERROR"),
    "json": (lambda: wide(200), "TIMEOUT"),
    "event": (
        lambda: wide(200, "text/event-stream", "event: message_delta\ndata: "),
        "SERVER_ERROR",
    ),
}


async def failure_of(world: World, model: str, *answers: Answering) -> str:
    """Return the reason of the model's failure. Check that the next candidate answers, and that the
    router keeps little meanwhile.
    """
    world.provider.on(model, *answers)
    world.provider.on("two", sse(*chat("from two")))
    router, flash = await open_gemini_router(world)
    names = {"one": world.ref("one"), "claude": f"{world.anthropic}/claude", "flash": flash}
    with memory_bound(KEPT_BYTES):
        answered = await router.generate(names[model], world.ref("two"))
    assert answered.verdicts[1] == ("two", "ANSWERED", "UNSPECIFIED")
    name, verdict, reason = answered.verdicts[0]
    assert (name, verdict) == (model, "FAILED")
    return reason


@pytest.mark.parametrize("model", ["one", "claude", "flash"])
@pytest.mark.parametrize("shape", FLOODS)
async def test_Generate__an_endless_body_is_cut(world: World, model: str, shape: str) -> None:
    make, reason = FLOODS[shape]
    flood = make()
    assert await failure_of(world, model, flood) == reason
    assert flood.sent_bytes < SENT_BYTES


@pytest.mark.parametrize("model", ["one", "claude", "flash"])
async def test_Generate__the_endless_body_of_another_success_is_cut(world: World, model: str) -> None:
    flood = Flood(203, begin=b'{"error": "')
    await failure_of(world, model, flood)
    assert flood.sent_bytes < SENT_BYTES


@pytest.mark.parametrize("model", ["one", "claude", "flash"])
async def test_Generate__the_endless_body_of_a_redirect_is_cut(world: World, model: str) -> None:
    paths = {"one": "/v1/chat/completions", "claude": "/v1/messages", "flash": "/v1beta/models/flash:x"}
    flood = Flood(307, location=world.provider.base_url + paths[model])
    assert await failure_of(world, model, flood, BROKEN) == "SERVER_ERROR"
    assert flood.sent_bytes < SENT_BYTES


@pytest.mark.parametrize("model", ["one", "claude", "flash"])
@pytest.mark.parametrize("shape", BOMBS)
async def test_Generate__no_body_is_inflated(world: World, model: str, shape: str) -> None:
    make, reason = BOMBS[shape]
    assert await failure_of(world, model, make()) == reason


@pytest.mark.parametrize("model", ["one", "claude", "flash"])
@pytest.mark.parametrize("shape", DEEP)
async def test_Generate__deep_json_is_a_body_that_cannot_be_read(
    world: World, model: str, shape: str
) -> None:
    make, reason = DEEP[shape]
    assert await failure_of(world, model, make()) == reason


@pytest.mark.parametrize("model", ["one", "claude", "flash"])
@pytest.mark.parametrize("shape", WIDE)
async def test_Generate__json_of_millions_of_values_is_a_body_that_is_not_read(
    world: World, model: str, shape: str
) -> None:
    make, reason = WIDE[shape]
    assert await failure_of(world, model, make()) == reason
