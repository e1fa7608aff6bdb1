"""The context window is a capability: a candidate that cannot hold the request is skipped."""

from typing import Any

import pytest
from spawnmesh_core.errors import TRANSIENT_FACT
from spawnmesh_core.reasons import Reason

from tests.support.model_router.cooldowns import list_cooldowns
from tests.support.model_router.fixtures import Router, World, image_block, user
from tests.support.model_router.provider import BROKEN, chat, openai_error, sse

OVERFLOWED = openai_error(
    400, "This model's maximum context length is 1000 tokens", "x", "context_length_exceeded"
)
SMALL, LARGE = 1_000, 128_000
TEXT_6_000_TOKENS = "some text that is long " * 1_000


def sizes(world: World, **windows: int) -> dict[str, Any]:
    """Return a configuration with models of these context windows."""
    models = {
        world.ref(name): {"context_window": window, "max_output": min(window, 4096), "vision": name != "two"}
        for name, window in windows.items()
    }
    return world.config(models=models, aliases={}, primary=world.ref(next(iter(windows))))


async def start(world: World, **windows: int) -> Router:
    for name in windows:
        world.provider.on(name, sse(*chat(f"from {name}")))
    return await world.router(sizes(world, **windows))


async def test_Generate__skips_a_candidate_whose_window_cannot_hold_the_request(world: World) -> None:
    router = await start(world, one=SMALL, two=LARGE)
    messages = [user(TEXT_6_000_TOKENS)]
    answered = await router.generate(world.ref("one"), world.ref("two"), messages=messages)
    assert answered.verdicts == [("one", "INCAPABLE", "CONTEXT_OVERFLOW"), ("two", "ANSWERED", "UNSPECIFIED")]
    assert answered.completion.verdicts[0].detail == "its context window cannot hold the request"
    assert world.provider.asked("one") == 0
    explained = await router.explain(world.ref("one"), world.ref("two"), messages=messages)
    assert explained == [("one", "INCAPABLE"), ("two", "READY")]
    assert (await router.generate(world.ref("one"), world.ref("two"))).text == "from one"


async def test_Generate__counts_the_output_and_the_images_into_the_window(world: World) -> None:
    router = await start(world, one=2_000, two=LARGE)
    long_output = await router.generate(world.ref("one"), world.ref("two"), max_output_token_count=1_999)
    assert long_output.text == "from two"
    images = [user(image_block(), image_block())]
    assert (await router.generate(world.ref("one"), world.ref("two"), messages=images)).text == "from two"


async def test_Generate__an_overflow_asks_a_larger_window(world: World) -> None:
    router = await start(world, one=8_000, same=8_000, two=LARGE)
    world.provider.on("one", OVERFLOWED)
    answered = await router.generate(world.ref("one"), world.ref("same"), world.ref("two"))
    assert answered.verdicts == [
        ("one", "FAILED", "CONTEXT_OVERFLOW"),
        ("same", "INCAPABLE", "CONTEXT_OVERFLOW"),
        ("two", "ANSWERED", "UNSPECIFIED"),
    ]
    assert world.provider.asked("same") == 0
    assert await list_cooldowns(router) == []


async def test_Generate__an_overflow_of_the_largest_window_ends_the_chain(world: World) -> None:
    router = await start(world, one=LARGE, two=SMALL)
    world.provider.on("one", OVERFLOWED)
    refused = (await router.generate(world.ref("one"), world.ref("two"))).refused
    assert refused.reason is Reason.MODEL_REFUSED
    assert refused.facts["failover_reason"] == "CONTEXT_OVERFLOW"
    assert world.provider.asked("two") == 0


async def test_Generate__a_larger_window_that_fails_may_answer_later(world: World) -> None:
    router = await start(world, one=SMALL, two=LARGE)
    world.provider.on("one", OVERFLOWED)
    world.provider.on("two", BROKEN)
    refused = (await router.generate(world.ref("one"), world.ref("two"))).refused
    assert (refused.reason, refused.facts[TRANSIENT_FACT]) == (Reason.ALL_CANDIDATES_FAILED, "true")


async def test_Generate__a_request_that_no_window_holds_is_refused_unasked(world: World) -> None:
    router = await start(world, one=SMALL, two=2_000)
    messages = [user(TEXT_6_000_TOKENS)]
    refused = (await router.generate(world.ref("one"), world.ref("two"), messages=messages)).refused
    assert refused.reason is Reason.MODEL_REFUSED
    assert refused.facts["candidate_2"] == f"{world.ref('two')} INCAPABLE CONTEXT_OVERFLOW"
    assert world.provider.bodies == []


@pytest.mark.parametrize("images", [False, True], ids=["alone", "the-larger-one-is-blind"])
async def test_Generate__an_estimate_does_not_exclude_the_last_capable_candidate(
    world: World, images: bool
) -> None:
    router = await start(world, one=5_000, two=LARGE)
    content = [user(TEXT_6_000_TOKENS, *([image_block()] if images else []))]
    await router.prepare(1, blind_model_policy="BLIND_MODEL_POLICY_ROUTE_AROUND")
    answered = await router.generate(world.ref("one"), world.ref("two"), strict=not images, messages=content)
    assert answered.text == "from one"
