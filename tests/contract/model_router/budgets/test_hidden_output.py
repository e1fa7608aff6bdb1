"""Hidden output is charged, too: thoughts, unfinished calls, images, and the input of a broken
answer.
"""

import json
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_core.reasons import Reason

from tests.support.model_router.budgets import WITHOUT_USAGE, is_spent, router_with
from tests.support.model_router.fixtures import World, image_block, user
from tests.support.model_router.gemini import said as said_by_gemini
from tests.support.model_router.provider import Stall, chunk, cut_after, sse, tool_part
from tests.support.model_router.responses import called, reasoned
from tests.support.model_router.responses import said as said_in_responses
from tests.support.waiting import eventually

TOKENS = 10_000
LONG = "Hm. " * 12_500  # 12,500 tokens by the estimate.
MESSAGE = {
    "id": "msg_7",
    "type": "message",
    "role": "assistant",
    "content": [],
    "model": "claude",
    "stop_reason": None,
}


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*WITHOUT_USAGE))
    return world


def by_chat(**delta: Any) -> tuple[dict[str, Any], ...]:
    return chunk({"role": "assistant", **delta}), chunk({"content": "x"})


def by_anthropic(kind: str = "", *, read: int = 1, **delta: str) -> tuple[dict[str, Any], ...]:
    starts = {
        "thinking_delta": {"type": "thinking", "thinking": "", "signature": ""},
        "input_json_delta": {"type": "tool_use", "id": "c1", "name": "read", "input": {}},
        "text_delta": {"type": "text", "text": ""},
    }
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**MESSAGE, "usage": {"input_tokens": read, "output_tokens": 1}}}
    ]
    blocks = [(kind, delta)] if kind else []
    for place, (sort, part) in enumerate([*blocks, ("text_delta", {"text": "x"})]):
        events.append({"type": "content_block_start", "index": place, "content_block": starts[sort]})
        events.append({"type": "content_block_delta", "index": place, "delta": {"type": sort, **part}})
    return tuple(events)


def by_gemini(part: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return said_by_gemini(part), said_by_gemini({"text": "x"})


# Each ends in a text that the caller sees, so that all before it has come.
UNSEEN = {
    "chat-thought": by_chat(reasoning_content=LONG),
    "chat-call": (tool_part(0, '{"path": "' + LONG, "c1", "read"), chunk({"content": "x"})),
    "anthropic-thought": by_anthropic("thinking_delta", thinking=LONG),
    "anthropic-call": by_anthropic("input_json_delta", partial_json='{"path": "' + LONG),
    "anthropic-read": by_anthropic(read=TOKENS),
    "responses-thought": (*reasoned(LONG, "gAAA")[:3], *said_in_responses("x", place=1)[:3]),
    "responses-call": (*called("c1", "read", '{"path": "' + LONG)[:2], *said_in_responses("x", place=1)[:3]),
    "responses-whole": (
        *called("c1", "read", json.dumps({"path": LONG}))[::3],
        *said_in_responses("x", place=1)[:3],
    ),
    "gemini-thought": by_gemini({"text": LONG, "thought": True}),
    "gemini-call": by_gemini({"functionCall": {"name": "read", "args": {"path": LONG}}}),
}


@pytest.mark.parametrize("sort", UNSEEN)
async def test_Generate__a_caller_who_leaves_pays_for_what_it_did_not_see(world: World, sort: str) -> None:
    kind = sort.partition("-")[0]
    model = world.ref("one") if kind in ("chat", "responses") else f"{world.anthropic}/claude"
    config = world.config()
    if kind == "responses":
        config["models"][model]["api"] = "responses"
    if kind == "gemini":
        config["providers"][world.anthropic]["kind"] = "gemini"
    stall = Stall(UNSEEN[sort])
    world.provider.on(model.partition("/")[2], stall)
    router = await router_with(world, TOKENS, config)
    await router.hang_up_after(
        3 if sort in ("gemini-call", "responses-whole") else 2, model, stall.reached.wait
    )

    async def is_counted() -> bool:
        return await is_spent(world, router)

    await eventually(is_counted)
    assert world.provider.asked("two") < TOKENS // 10  # The check itself does not exhaust the budget.


@pytest.mark.parametrize("said", [{"reasoning_content": LONG}, {}])
async def test_Generate__thoughts_that_break_off_are_paid_for(world: World, said: dict[str, str]) -> None:
    world.provider.on("one", cut_after(chunk({"role": "assistant", **said})))
    router = await router_with(world, TOKENS)
    assert (
        await router.generate(world.ref("one"), strict=True)
    ).refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert await is_spent(world, router) is bool(said)


NAMED = generation_pb2.NamedImage(name="a.png", image=image_block().image)


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"messages": [user(image_block())]}, 1),
        ({"messages": [user(image_block(), image_block())]}, 2),
        ({"messages": [user("")], "named_images": [NAMED]}, 1),
    ],
)
@pytest.mark.parametrize("more", [0, 1])
async def test_Generate__images_that_no_provider_counts_are_estimated(
    world: World, asked: dict[str, Any], count: int, more: int
) -> None:
    router = await router_with(world, 1600 * count + 50 + more)
    assert (await router.generate(world.ref("two"), strict=True, **asked)).refusal is None
    assert await is_spent(world, router) is not bool(more)


async def test_Generate__images_that_are_not_sent_cost_nothing(world: World) -> None:
    world.provider.on("blind", sse(*WITHOUT_USAGE))
    router = await router_with(world, 1600, world.config(blind_model_policy="STRIP"))
    images: list[message_pb2.ContentBlock] = [image_block()]
    assert (await router.generate(world.ref("blind"), strict=True, messages=[user(*images)])).refusal is None
    assert not await is_spent(world, router)
