"""Images that a prompt names: the runner finds them in its workspace, and the router sends them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_client.named_images import MAX_IMAGE_BYTES, MAX_TOTAL_BYTES
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import PNG, World, image_block
from tests.support.model_router.provider import (
    anthropic_answer,
    chat,
    chunk,
    named_sse,
    openai_error,
    sse,
    tool_part,
)
from tests.support.model_router.runner import carry, queue
from tests.support.runner.scripted_mesh import ScriptedMesh

UNSUPPORTED = openai_error(400, "Unsupported content", "invalid_request_error", None)
FILES = {
    "a.png": PNG,
    "my chart.png": PNG + b"chart",
    "fake.png": b"not an image",
    "large.png": PNG + bytes(MAX_IMAGE_BYTES),
    "unnamed.png": PNG,
}


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("one", sse(*chat("A cat.")))
    world.provider.on("two", sse(*chat("Nothing to see.")))
    return world


@pytest.fixture
def mesh(keys: Path) -> ScriptedMesh:
    scripted = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    scripted.files = dict(FILES)
    return scripted


def shown(body: dict[str, Any]) -> list[str]:
    """Return the names of the images in the request of a chat completion."""
    parts = [
        part
        for message in body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    return [text["text"] for text, image in pairwise(parts) if image["type"] == "image_url"]


async def test_runner__the_images_that_a_task_names_are_shown_behind_it(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    path = f".spawnmesh/attachments/{mesh.set_id}/my chart.png"
    queue(
        mesh,
        world,
        task=f"Compare a.png with {path}; fake.png, large.png, gone.png and ../../etc/x.png do not count.",
    )
    await carry(mesh, world, keys, tmp_path)
    [body] = world.provider.bodies
    assert shown(body) == ["[a.png]", "[my chart.png]"]
    assert body["messages"][-1]["role"] == "user"


async def test_runner__images_are_limited_to_the_size_of_a_request(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    half = PNG + bytes(MAX_TOTAL_BYTES * 2 // 5)
    mesh.files = {"a.png": half, "b.png": half, "c.png": half, "d.png": PNG}
    queue(mesh, world, task="a.png b.png c.png d.png")
    await carry(mesh, world, keys, tmp_path)
    assert shown(world.provider.bodies[0]) == ["[a.png]", "[b.png]", "[d.png]"]


async def test_runner__a_task_that_names_no_image_shows_none(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    queue(mesh, world, task="What is in the files?")
    await carry(mesh, world, keys, tmp_path)
    assert "image_url" not in str(world.provider.bodies)


async def test_runner__the_newest_prompt_alone_counts_and_what_tools_wrote_is_found(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    write = (
        chunk({"role": "assistant", "content": None}),
        tool_part(0, '{"path": "out/b.gif", "content": "GIF89a"}', call_id="call_1", name="write_file"),
        chunk({}, "tool_calls"),
    )
    world.provider.on("one", sse(*write), sse(*chat("Done.")))
    mesh.files = {"a.png": PNG}
    mesh.store(entry_pb2.EntryBody(message=_said("Look at a.png.")))
    queue(mesh, world, task="Draw out/b.gif.")
    await carry(mesh, world, keys, tmp_path)
    assert [shown(body) for body in world.provider.bodies] == [[], ["[out/b.gif]"]]
    assert "data:image/gif;base64," in str(world.provider.bodies[1])


async def test_runner__after_a_refused_form_the_next_model_is_shown_none(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    world.provider.on("one", UNSUPPORTED)
    queue(mesh, world, task="Look at a.png.")
    await carry(mesh, world, keys, tmp_path)
    assert [shown(body) for body in world.provider.bodies] == [["[a.png]"], []]


async def test_runner__another_provider_is_shown_none(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    world.provider.on("one", openai_error(500, "oops", "server_error", None))
    world.provider.on(
        "claude", named_sse(*anthropic_answer(stop="end_turn")[:-8], *anthropic_answer(stop="end_turn")[-2:])
    )
    queue(mesh, world, task="Look at a.png.")
    claimed = mesh.queue.get_nowait()
    claimed.models[:] = [world.ref("one"), f"{world.anthropic}/claude"]
    claimed.agent.models[:] = claimed.models
    mesh.queue.put_nowait(claimed)
    await carry(mesh, world, keys, tmp_path)
    first, second = world.provider.bodies
    assert shown(first) == ["[a.png]"]
    assert '"image"' not in str(second).replace("'", '"')


def _said(text: str) -> message_pb2.Message:
    block = message_pb2.ContentBlock(text=message_pb2.Text(text=text))
    return message_pb2.Message(role=message_pb2.ROLE_USER, content=[block])


async def test_Generate__images_that_the_prompt_names_follow_the_rules_of_images(world: World) -> None:
    world.provider.on("one", openai_error(400, "Unsupported content", "invalid_request_error", None))
    world.provider.on("two", sse(*chat("blind now")))
    router = await world.router()
    named = generation_pb2.NamedImage(name="/srv/a.png", image=image_block().image)
    answered = await router.generate(world.ref("one"), world.ref("two"), named_images=[named])
    first, second = world.provider.bodies
    assert str(first).count("image_url") == 2  # the part's type and its member
    assert "/srv/a.png" in str(first)
    assert "image_url" not in str(second)
    started = [event.attempt_started for event in answered.events if event.HasField("attempt_started")]
    assert [start.prompt_image_detection_suppressed for start in started] == [False, True]
    assert answered.completion.images == generation_pb2.IMAGE_OUTCOME_WITHHELD
