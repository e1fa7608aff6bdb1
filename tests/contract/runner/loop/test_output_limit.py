"""An answer that reaches the output limit before it says anything does not end the run.

The model reads a note. If that does not help, the run fails.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_client.turn_messages import text_message
from spawnmesh_client.unfinished_turn import OUTPUT_LIMIT_NOTE
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runner.domain.turns import MAX_CUT_OFF_COUNT
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.answers import calling, saying
from tests.support.model_router.fixtures import World, open_world
from tests.support.model_router.provider import USAGE_CHUNK, Answering, chat, chunk, sse, tool_part
from tests.support.model_router.runner import carry, queue
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

ASSISTANT = message_pb2.ROLE_ASSISTANT
THOUGHT = chunk({"role": "assistant", "reasoning_content": "hmm, for very long"})
HALF_A_CALL = tool_part(0, '{"path": "report.md", "content": "half of', "c0", "write_file")


def cut_off(*said: dict[str, Any]) -> Answering:
    return sse(chunk({"role": "assistant"}), *said, chunk({}, "length"), USAGE_CHUNK)


@pytest.fixture
async def world(databases: dict[str, ServiceDsn], keys: Path, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(databases["model_router"], keys, tmp_path) as opened:
        yield opened


@pytest.fixture
def mesh(keys: Path) -> ScriptedMesh:
    return ScriptedMesh(TokenMinter("session", keys / "session.pem"))


async def execute_run(mesh: ScriptedMesh, keys: Path, folder: Path, *, epoch: int = 1) -> None:
    mesh.queue_run(epoch=epoch, tools=("list_files",))
    async with running_runner(mesh, keys, folder):
        await eventually(lambda: mesh.finalized or mesh.failed)


def last_message_sent(world: World) -> Any:
    """Return the last message of the provider's newest call."""
    return world.provider.bodies[-1]["messages"][-1]


@pytest.mark.parametrize(
    "said",
    [[THOUGHT], [HALF_A_CALL], [], [chunk({"content": "\n"})]],
    ids=["thoughts", "half a call", "nothing", "blank"],
)
async def test_FinalizeRun__a_model_reads_of_its_output_limit_and_answers(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path, said: list[dict[str, Any]]
) -> None:
    world.provider.on("one", cut_off(*said), sse(*chat("in parts")))
    queue(mesh, world)
    await carry(mesh, world, keys, tmp_path)
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "in parts"
    assert mesh.finalized.usage.output_token_count == 2 * 5
    assert last_message_sent(world) == {"role": "user", "content": OUTPUT_LIMIT_NOTE.text}
    assert not list((tmp_path / "work").rglob("report.md"))


async def test_FailRun__repeated_output_limits_fail_the_run(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    world.provider.on("one", cut_off(THOUGHT))
    queue(mesh, world)
    await carry(mesh, world, keys, tmp_path, may_fail=True)
    assert mesh.finalized is None
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_OUTPUT_LIMIT_REACHED
    assert "output limit" in mesh.failed.message
    assert mesh.failed.usage.output_token_count == MAX_CUT_OFF_COUNT * 5
    assert world.provider.asked("one") == MAX_CUT_OFF_COUNT


async def test_CloseWindow__the_last_silent_answer_fails_no_run_that_got_a_message(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """The answer that said nothing replies to a transcript that no longer exists."""
    silent = cut_off(THOUGHT)

    async def interrupted_by_news(request: web.Request) -> web.StreamResponse:
        mesh.store(entry_pb2.EntryBody(message=text_message(message_pb2.ROLE_USER, "Be brief.")))
        return await silent(request)

    answers = [silent] * (MAX_CUT_OFF_COUNT - 1)
    world.provider.on("one", *answers, interrupted_by_news, sse(*chat("I see.")))
    queue(mesh, world)
    await carry(mesh, world, keys, tmp_path)
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "I see."
    assert world.provider.asked("one") == MAX_CUT_OFF_COUNT + 1


async def test_FinalizeRun__an_answer_in_between_resets_the_count(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    read = sse(tool_part(0, '{"path": "a.txt"}', "c0", "read_file"), chunk({}, "tool_calls"), USAGE_CHUNK)
    silent = [cut_off(THOUGHT)] * (MAX_CUT_OFF_COUNT - 1)
    world.provider.on("one", *silent, read, *silent, sse(*chat("at last")))
    queue(mesh, world)
    await carry(mesh, world, keys, tmp_path)
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "at last"


async def test_FailRun__the_output_limit_in_the_last_turn_is_the_reason(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    world.provider.on("one", cut_off(THOUGHT))
    queue(mesh, world)
    claimed = mesh.queue.get_nowait()
    claimed.agent.max_turn_count = 1
    mesh.queue.put_nowait(claimed)
    await carry(mesh, world, keys, tmp_path, may_fail=True)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_OUTPUT_LIMIT_REACHED


def note_cut_off(mesh: ScriptedMesh) -> None:
    mesh.write(message_pb2.Message(role=ASSISTANT, model="scripted/one"))
    mesh.store(entry_pb2.EntryBody(system_note=OUTPUT_LIMIT_NOTE), mesh.run_id, 1)


async def test_FinalizeRun__after_a_takeover_a_cut_off_answer_is_not_offered(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    world.provider.on("one", sse(*chat("in parts")))
    queue(mesh, world, epoch=2)
    note_cut_off(mesh)
    await carry(mesh, world, keys, tmp_path)
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "in parts"


async def test_FailRun__after_a_takeover_cut_off_answers_keep_counting(
    world: World, mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    world.provider.on("one", cut_off(THOUGHT))
    queue(mesh, world, epoch=2)
    for _ in range(MAX_CUT_OFF_COUNT - 1):
        note_cut_off(mesh)
    await carry(mesh, world, keys, tmp_path, may_fail=True)
    assert mesh.failed is not None
    assert world.provider.asked("one") == 1


@pytest.mark.parametrize("is_summed_up", [False, True])
async def test_Generate__the_progress_before_a_cut_off_answer_is_reported(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, is_summed_up: bool
) -> None:
    """It is known even if a summary covers the turn completely."""
    mesh.write(text_message(message_pb2.ROLE_USER, "Pay."), epoch=0)
    mesh.write(calling(("c1", "mcp__pay__send", "{}")))
    mesh.write(message_pb2.Message(role=message_pb2.ROLE_TOOL_RESULT, tool_call_id="c1"))
    note_cut_off(mesh)
    if is_summed_up:
        sources = entry_pb2.SummarySources(last_seq=len(mesh.entries))
        mesh.store(entry_pb2.EntryBody(compaction=entry_pb2.Compaction(summary="So far.", sources=sources)))
    mesh.answers.append(saying("Paid."))
    await execute_run(mesh, keys, tmp_path, epoch=2)
    assert list(mesh.prompts[0].partial_execution.tool_names) == ["mcp__pay__send"]


async def test_FinalizeRun__an_empty_answer_below_the_limit_is_final(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.write(text_message(message_pb2.ROLE_USER, "Do it."), epoch=0)
    mesh.answers.append(saying(""))
    await execute_run(mesh, keys, tmp_path)
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == ""
