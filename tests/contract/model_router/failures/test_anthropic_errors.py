"""Errors in Anthropic's format in a response with status 200: each keeps its reason."""

import json
from collections.abc import Callable

import pytest

from tests.support.model_router.fixtures import World
from tests.support.model_router.provider import (
    Answering,
    anthropic_answer,
    chat,
    error,
    named_sse,
    raw_sse,
    sse,
)

Body = dict[str, object]
SHAPES: dict[str, Callable[[Body], Answering]] = {
    "json": lambda body: error(200, body),
    "event": named_sse,
    "event-in-the-answer": lambda body: named_sse(anthropic_answer()[0], body),
    "event-without-name": lambda body: raw_sse(f"data: {json.dumps(body)}\n\n"),
    "event-without-type": lambda body: raw_sse(f"data: {json.dumps({'error': body['error']})}\n\n"),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("kind", "message", "reason"),
    [
        ("overloaded_error", "Overloaded", "OVERLOADED"),
        ("rate_limit_error", "This request would exceed your organization's rate limit", "RATE_LIMIT"),
        ("invalid_request_error", "messages: roles must alternate", "FORMAT"),
    ],
)
async def test_Generate__an_error_in_a_200_keeps_its_reason(
    world: World, shape: str, kind: str, message: str, reason: str
) -> None:
    body: Body = {"type": "error", "error": {"type": kind, "message": message}}
    world.provider.on("claude", SHAPES[shape](body))
    world.provider.on("one", sse(*chat("from one")))
    answered = await (await world.router()).generate(f"{world.anthropic}/claude", world.ref("one"))
    assert answered.verdicts == [("claude", "FAILED", reason), ("one", "ANSWERED", "UNSPECIFIED")]


async def test_Generate__reads_events_without_names(world: World) -> None:
    answer = (f"data: {json.dumps(event)}\n\n" for event in anthropic_answer())
    world.provider.on("claude", raw_sse("".join(answer)))
    answered = await (await world.router()).generate(f"{world.anthropic}/claude")
    assert answered.text == "I read it."
