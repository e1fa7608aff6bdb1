"""A runner among scripted peers: interrupts of the model, of tools, of a draft, and of a claim."""

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.hook.v1 import event_pb2
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason

from tests.support.captured_logs import captured_warnings
from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.mcp_fixtures import config, stdio
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

USER, ASSISTANT, RESULT = message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL_RESULT
LONG = 600.0
"""A lease whose next heartbeat is too far away for the test: a hint must bring it."""
WAIT = ("sessions_wait", '{"session_ids": ["ses_' + "0" * 26 + '"]}')


def texts(messages: list[message_pb2.Message]) -> list[str]:
    return ["".join(block.text.text for block in message.content) for message in messages]


def notes(mesh: ScriptedMesh) -> list[str]:
    return [entry.body.system_note.topic for entry in mesh.entries if entry.body.HasField("system_note")]


async def test_InterruptRun__the_model_call_is_cancelled_and_what_was_said_is_kept(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model, mesh.spoken_first = asyncio.Event(), ("I have ", "found")
    mesh.queue_run(lease_seconds=LONG)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.model_called.is_set)
        mesh.change(pb.INTERRUPT_RUN)
        await eventually(lambda: mesh.interrupted and mesh.released_claims)
    assert mesh.model_cancelled
    assert texts(mesh.messages(ASSISTANT)) == ["I have found"]
    assert mesh.messages(ASSISTANT)[0].model == "scripted/one"
    assert notes(mesh) == ["interrupted"]
    assert (mesh.finalized, mesh.failed, mesh.released, mesh.released_claims) == (None, None, [], [1])


async def test_InterruptRun__nothing_is_appended_where_nothing_was_said(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.model_called.is_set)
        mesh.change(pb.INTERRUPT_RUN)
        await eventually(lambda: mesh.interrupted)
    assert (mesh.messages(ASSISTANT), notes(mesh)) == ([], [])


async def test_InterruptRun__an_urgent_message_stops_the_answer_and_the_run_goes_on_with_it(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model, mesh.spoken_first = asyncio.Event(), ("First I will",)
    mesh.answers.append(saying("Done with the second."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.model_called.is_set)
        mesh.inbox.append(pb.InboxMessage(key="m1", text="Do the second."))
        mesh.change(pb.INTERRUPT_TURN)
        await eventually(lambda: len(mesh.prompts) == 2)
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized)
    assert mesh.interrupted is None
    read = texts(list(mesh.prompts[1].messages))
    assert read[:2] == ["Do it.", "First I will"]
    assert "You were interrupted here." in read[2]
    assert read[3] == "Do the second."
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "Done with the second."


async def test_InterruptRun__a_waiting_tool_is_cut_short_and_the_next_calls_are_not_made(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_wait = asyncio.Event()
    mesh.answers.append(calling(("c1", *WAIT), ("c2", "sessions_spawn", '{"task": "t"}')))
    mesh.queue_run(tools=("sessions_wait", "sessions_spawn"))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.wait_called.is_set)
        mesh.change(pb.INTERRUPT_RUN)
        await eventually(lambda: mesh.interrupted)
    results = mesh.messages(RESULT)
    assert [(result.tool_call_id, result.is_error) for result in results] == [("c1", True), ("c2", True)]
    cut, not_made = texts(results)
    assert "make it again" in cut
    assert "was not made" in not_made
    assert mesh.spawns == {}
    assert len(mesh.prompts) == 1


async def test_InterruptRun__a_run_that_must_end_leaves_its_inbox_to_the_next(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.model_called.is_set)
        mesh.inbox.append(pb.InboxMessage(key="m1", text="The next question?"))
        mesh.change(pb.INTERRUPT_RUN)
        await eventually(lambda: mesh.interrupted)
    assert [message.key for message in mesh.inbox] == ["m1"]
    assert texts(mesh.messages(USER)) == ["Do it."]


async def test_InterruptRun__a_call_that_a_lost_runner_began_may_have_been_made(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    path = '{"path": "a.txt", "content": "x"}'
    mesh.write(calling(("c1", "write_file", path), ("c2", "write_file", path)))
    mesh.hooks.active = [event_pb2.HOOK_KIND_BEFORE_TOOL_CALL]
    mesh.hooks.hold_tool_calls = asyncio.Event()
    mesh.answers.append(saying("Done."))
    mesh.queue_run(epoch=2, tools=("write_file",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.hooks.asked)
        mesh.inbox.append(pb.InboxMessage(key="m1", text="Hurry."))
        mesh.change(pb.INTERRUPT_TURN)
        await eventually(lambda: mesh.finalized)
    begun, not_made = texts(mesh.messages(RESULT))
    assert "make it again" in begun
    assert "was not made" in not_made


async def test_InterruptRun__a_tool_that_may_have_done_something_says_so(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.extend([calling(("c1", "mcp__weather__sleep", '{"seconds": 60}')), saying("Done.")])
    mesh.queue_run(mcp_servers=("weather",))
    marks = tmp_path / "marks"
    servers = config(tmp_path, weather=stdio(env={"NOTES": str(marks)}, call_timeout_seconds=600))
    async with running_runner(mesh, keys, tmp_path / "work", mcp_config_file=servers):
        await eventually(lambda: marks.exists() and "sleeping" in marks.read_text())
        mesh.inbox.append(pb.InboxMessage(key="m1", text="Hurry."))
        mesh.change(pb.INTERRUPT_TURN)
        await eventually(lambda: mesh.finalized)
    assert "may or may not have been done" in texts(mesh.messages(RESULT))[0]
    assert mesh.finalized is not None
    assert mesh.finalized.has_final_effects


async def test_InterruptRun__a_draft_that_is_judged_is_given_up(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    judging = asyncio.Event()

    async def judge(_request: Any) -> None:
        judging.set()
        await asyncio.Event().wait()

    mesh.on_revise = judge
    mesh.outcomes.append(pb.FinalizeRunResponse(revise=pb.Revision(instruction="never said")))
    mesh.answers.append(saying("Done."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(judging.is_set)
        mesh.change(pb.INTERRUPT_RUN)
        await eventually(lambda: mesh.interrupted)
    assert texts(mesh.messages(ASSISTANT)) == ["Done."]


async def test_FinalizeRun__interrupted_ends_the_run(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.outcomes.append(pb.FinalizeRunResponse(interrupted=pb.Interrupted()))
    mesh.answers.append(saying("Done."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.interrupted)
    assert mesh.interrupted is not None
    assert mesh.interrupted.usage.input_token_count == 10
    assert (mesh.finalized, mesh.failed) == (None, None)


async def test_ClaimRuns__an_interrupted_run_is_ended_without_work(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.queue_run(epoch=2)
    claimed = mesh.queue.get_nowait()
    claimed.run.interrupt_time.GetCurrentTime()
    mesh.queue.put_nowait(claimed)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.interrupted)
    assert mesh.interrupted is not None
    assert mesh.interrupted.epoch == 2
    assert (mesh.prompts, mesh.entries[1:]) == ([], [])


@pytest.mark.parametrize("reason", [Reason.RUN_STATE, Reason.RUN_LEASE_LOST])
async def test_EndInterruptedRun__a_run_that_has_ended_otherwise_is_left_alone(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, reason: Reason
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.refusals["EndInterruptedRun"] = deque([unavailable("session"), MeshError(reason, "over")])
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.model_called.is_set)
        mesh.change(pb.INTERRUPT_RUN)
        await eventually(lambda: not mesh.refusals["EndInterruptedRun"] and mesh.released_claims)
    assert (mesh.failed, mesh.released, mesh.interrupted) == (None, [], None)


async def test_WatchRunChanges__without_it_a_heartbeat_brings_the_interrupt(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["WatchRunChanges"] = deque(unavailable("session") for _ in range(1000))
    mesh.hold_model = asyncio.Event()
    mesh.queue_run(lease_seconds=2.0)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.model_called.is_set)
        mesh.interrupt = pb.INTERRUPT_RUN
        await eventually(lambda: mesh.interrupted)


async def test_WatchRunChanges__is_opened_again_and_what_came_meanwhile_is_found(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.queue_run(lease_seconds=LONG)
    with captured_warnings() as warnings:
        async with running_runner(mesh, keys, tmp_path):
            await eventually(mesh.model_called.is_set)
            mesh.changes.put_nowait(False)
            await eventually(mesh.changes.empty)
            mesh.interrupt = pb.INTERRUPT_RUN
            await eventually(lambda: mesh.interrupted)
    assert [entry["event"] for entry in warnings if entry["event"] == "run_changes_not_followed"] == []


async def test_WatchRunChanges__a_killed_run_stops_at_once(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.queue_run(lease_seconds=LONG)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.model_called.is_set)
        mesh.lease_lost = True
        mesh.change(pb.INTERRUPT_UNSPECIFIED)
        await eventually(lambda: mesh.model_cancelled)
    assert (mesh.failed, mesh.interrupted) == (None, None)
