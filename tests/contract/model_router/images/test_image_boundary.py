"""Images that a switch of the provider withheld stay withheld from it in the calls that follow."""

import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import (
    PNG,
    Answered,
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
    anthropic_answer,
    chat,
    named_sse,
    sse,
)
from tests.support.model_router.runner import carry, queue
from tests.support.runner.scripted_mesh import ScriptedMesh

NAMED = generation_pb2.NamedImage(name="a.png", image=message_pb2.Image(mime_type="image/png", data=PNG))
LOOK = user("look", image_block())
CALLING = call_block("toolu_1", "read", '{"type":"toolUse","id":"toolu_1","name":"read","input":{}}')


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("one", RATE_LIMITED)
    world.provider.on("claude", named_sse(*anthropic_answer()))
    return world


def image_count(body: dict[str, Any]) -> int:
    return json.dumps(body).count('"type": "image"') + json.dumps(body).count('"type": "image_url"')


async def ask(router: Router, world: World, *messages: message_pb2.Message, **fields: Any) -> Answered:
    """Call the chain of two providers; return its answer."""
    return await router.generate(world.ref("one"), f"{world.anthropic}/claude", messages=messages, **fields)


async def test_Generate__withheld_images_stay_withheld_in_later_calls(world: World) -> None:
    router = await world.router()
    first = (await ask(router, world, LOOK)).completion
    assert first.images == generation_pb2.IMAGE_OUTCOME_WITHHELD
    assert first.message.image_provider == world.scripted
    # The first provider is in cooldown now, so the second one is called first.
    history = [LOOK, first.message, tool_result("toolu_1", "done")]
    second = (await ask(router, world, *history)).completion
    assert second.images == generation_pb2.IMAGE_OUTCOME_WITHHELD
    next_turn = (await ask(router, world, *history, second.message, user("and now?"))).completion
    assert next_turn.images == generation_pb2.IMAGE_OUTCOME_WITHHELD
    assert [image_count(body) for body in world.provider.bodies] == [1, 0, 0, 0]
    assert world.provider.asked("claude") == 3


async def test_Generate__new_images_of_the_user_end_the_boundary(world: World) -> None:
    router = await world.router()
    answer = (await ask(router, world, LOOK)).completion.message
    newer = user("and this?", image_block())
    seen = (await ask(router, world, LOOK, answer, tool_result("toolu_1", "done"), newer)).completion
    assert seen.images == generation_pb2.IMAGE_OUTCOME_SENT
    assert image_count(world.provider.bodies[-1]) == 2


async def test_Generate__the_first_provider_ends_the_boundary_with_its_answer(world: World) -> None:
    world.provider.on("two", sse(*chat("I see")))
    router = await world.router()
    history = [LOOK, (await ask(router, world, LOOK)).completion.message, tool_result("toolu_1", "done")]
    second = await router.generate(world.ref("two"), f"{world.anthropic}/claude", messages=history)
    assert second.completion.images == generation_pb2.IMAGE_OUTCOME_SENT
    history += [second.completion.message, user("and now?")]
    seen = await router.generate(f"{world.anthropic}/claude", messages=history)
    assert seen.completion.images == generation_pb2.IMAGE_OUTCOME_SENT


async def test_Generate__a_cooldown_is_a_switch_within_a_turn_too(world: World) -> None:
    router = await world.router()
    await ask(router, world, user("no image"))  # The first provider is in cooldown now.
    answer = assistant("I see", CALLING)
    answer.model = world.ref("one")
    switched = (await ask(router, world, LOOK, answer, tool_result("toolu_1", "done"))).completion
    assert switched.images == generation_pb2.IMAGE_OUTCOME_WITHHELD
    assert switched.message.image_provider == world.scripted
    # A new turn begins where it is answered first.
    newer = (await ask(router, world, LOOK, answer, tool_result("toolu_1", "done"), user("now?"))).completion
    assert newer.images == generation_pb2.IMAGE_OUTCOME_SENT


async def test_Generate__an_image_that_the_second_provider_read_itself_is_sent(world: World) -> None:
    router = await world.router()
    answer = (await ask(router, world, LOOK, named_images=[NAMED])).completion.message
    history = [LOOK, answer, tool_result("toolu_1", image_block())]
    second = (await ask(router, world, *history)).completion
    assert second.images == generation_pb2.IMAGE_OUTCOME_WITHHELD
    assert image_count(world.provider.bodies[-1]) == 1
    assert second.message.image_provider == ""


@pytest.mark.parametrize(("task", "images"), [("once more a.png", 0), ("see b.png", 1)])
async def test_Generate__a_named_image_is_new_when_it_is_named_first(
    world: World, task: str, images: int
) -> None:
    router = await world.router()
    prompt = user("look at a.png")
    answer = (await ask(router, world, prompt, named_images=[NAMED])).completion.message
    named = generation_pb2.NamedImage(name=task.split()[-1], image=NAMED.image)
    later = [prompt, answer, tool_result("toolu_1", "done"), user(task)]
    await ask(router, world, *later, named_images=[named])
    assert [image_count(body) for body in world.provider.bodies] == [1, 0, images]


async def test_runner__keeps_the_boundary_when_the_second_stream_breaks(
    world: World, keys: Path, tmp_path: Path
) -> None:
    start, *_ = anthropic_answer()
    text = [one for one in anthropic_answer() if one.get("index") == 2]
    broken = named_sse(start, *text)
    world.provider.on("claude", broken, named_sse(start, *text, *anthropic_answer(stop="end_turn")[-2:]))
    mesh = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    mesh.files = {"a.png": PNG}
    queue(mesh, world, task="Look at a.png.")
    claimed = mesh.queue.get_nowait()
    claimed.models[:] = [world.ref("one"), f"{world.anthropic}/claude"]
    claimed.agent.models[:] = claimed.models
    mesh.queue.put_nowait(claimed)
    await carry(mesh, world, keys, tmp_path)
    assert [image_count(body) for body in world.provider.bodies] == [1, 0, 0]
    assert [e.body.message.image_provider for e in mesh.entries if e.body.message.model] == [world.scripted]
