"""Broken answers: the run goes on with the candidates that are left, and their tokens count."""

from pathlib import Path
from typing import Any

import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import World, user
from tests.support.model_router.provider import (
    USAGE_CHUNK,
    Answering,
    anthropic_answer,
    chat,
    chunk,
    cut_after,
    named_sse,
    slowly,
    sse,
    tool_part,
)
from tests.support.model_router.runner import carry, queue
from tests.support.runner.scripted_mesh import ScriptedMesh

START = chunk({"role": "assistant", "content": ""})
HELLO = chunk({"content": "Hello, this is a beginning."})
CUT = cut_after(START, HELLO)
ODD = {"error": {"message": "The flux capacitor is misaligned", "type": "odd", "code": "E77"}}
UNKNOWN = slowly(START, HELLO, ODD)
SPOKEN = named_sse(*anthropic_answer(stop="end_turn")[:1], *[
    one for one in anthropic_answer() if one.get("index") == 2
], *anthropic_answer(stop="end_turn")[-2:])  # fmt: skip


@pytest.mark.parametrize("broken", [CUT, UNKNOWN], ids=["cut", "unknown-error"])
async def test_runner__two_broken_streams_do_not_end_a_run_with_candidates_left(
    world: World, keys: Path, tmp_path: Path, broken: Answering
) -> None:
    world.provider.on("one", broken)
    world.provider.on("two", broken)
    world.provider.on("claude", SPOKEN)
    mesh = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    queue(mesh, world)
    claimed = mesh.queue.get_nowait()
    claimed.models[:] = [world.ref("one"), world.ref("two"), f"{world.anthropic}/claude"]
    claimed.agent.models[:] = claimed.models
    mesh.queue.put_nowait(claimed)
    await carry(mesh, world, keys, tmp_path)
    assert [body["model"] for body in world.provider.bodies] == ["one", "two", "claude"]
    assert mesh.finalized is not None
    usage = mesh.finalized.usage
    assert usage.output_token_count == 42 + 2 * 7, "27 bytes of a broken answer are 7 tokens"
    assert usage.input_token_count > 113


async def test_Generate__a_broken_stream_counts_what_it_used(world: World) -> None:
    world.provider.on("one", CUT)
    refused = (await (await world.router()).generate(world.ref("one"), messages=[user("x" * 400)])).refused
    assert refused.reason is Reason.STREAM_BROKEN
    assert refused.facts["used_input_token_count"] == "100"
    assert refused.facts["used_output_token_count"] == "7"


async def test_Generate__a_completion_counts_the_attempts_that_failed_before(world: World) -> None:
    thoughts = chunk({"role": "assistant", "reasoning_content": "Hm. " * 100})
    world.provider.on("one", sse(thoughts, chunk({}, "stop"), USAGE_CHUNK))
    world.provider.on("two", sse(*chat("from two")))
    completion = (await (await world.router()).generate(world.ref("one"), world.ref("two"))).completion
    assert (completion.failed_usage.input_token_count, completion.failed_usage.output_token_count) == (20, 5)
    assert completion.message.usage.output_token_count == 5


@pytest.mark.parametrize(("asked", "output"), [(100, 100), (0, 4096)])
async def test_Generate__an_absurd_count_is_bounded_by_what_was_asked_for(
    world: World, asked: int, output: int
) -> None:
    details = {"cached_tokens": 2**70}
    absurd = {"prompt_tokens": 2**70, "completion_tokens": 10**9, "prompt_tokens_details": details}
    world.provider.on("one", sse(START, HELLO, chunk({}, "stop"), {**USAGE_CHUNK, "usage": absurd}))
    answered = await (await world.router()).generate(world.ref("one"), max_output_token_count=asked)
    usage = answered.completion.message.usage
    assert usage.output_token_count == output
    assert usage.cache_read_token_count == usage.input_token_count < 20_000


@pytest.mark.parametrize(
    "part", [chunk({"reasoning_content": "é" * 200}), tool_part(0, '{"a": "' + "é" * 195, "c1", "read")]
)
async def test_Generate__what_was_written_bounds_a_count_once(world: World, part: dict[str, Any]) -> None:
    absurd = {"prompt_tokens": 20, "completion_tokens": 10**9}
    world.provider.on("one", sse(START, part, HELLO, chunk({}, "stop"), {**USAGE_CHUNK, "usage": absurd}))
    answered = await (await world.router()).generate(world.ref("one"), max_output_token_count=100)
    size = 400 if "reasoning_content" in part["choices"][0]["delta"] else 7 + 390
    assert answered.completion.message.usage.output_token_count == size + 27
