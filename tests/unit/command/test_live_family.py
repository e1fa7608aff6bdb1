"""`spawnmesh watch --family` prints what happens in a session and in those that are spawned below it."""

import asyncio
import json
import re
import shlex
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_USER
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1.entry_pb2 import EntryBody, Header
from spawnmesh_core.ids import IdKind, new_id

from tests.support.command.fake_mesh import SESSION_ID, FakeMesh, event, mesh, unset
from tests.support.command.live import RUN_ID, run_event, said, spawned_event

__all__ = ["mesh", "unset"]

SPAWNMESH = str(Path(sys.executable).with_name("spawnmesh"))
FIRST_ID, SECOND_ID = new_id(IdKind.SESSION), new_id(IdKind.SESSION)
RUNNING, SUCCEEDED = session_pb2.RUN_STATE_RUNNING, session_pb2.RUN_STATE_SUCCEEDED
WAITING = session_pb2.RUN_STATE_WAITING_APPROVAL
PROVISIONING = session_pb2.SESSION_EVENT_KIND_PROVISIONING
CLOSED = session_pb2.SESSION_EVENT_KIND_CLOSED
ROOT, FIRST, SECOND = f"— {SESSION_ID}  default —", f"— {FIRST_ID}  reader —", f"— {SECOND_ID}  writer —"
RETRACTED = "— retracted: the text above does not count —"
ASKS = ("ask", '{"arguments": "why"}')
SECONDS = 60.0


def spawns_two(mesh: FakeMesh, *more: session_pb2.SessionEvent) -> list[str]:
    """Let the session spawn two children, and return the lines that a watcher sees first."""
    mesh.sessions.events = [
        spawned_event(1, FIRST_ID, "reader"),
        spawned_event(2, SECOND_ID, "writer"),
        *more,
    ]
    return [
        f"{SESSION_ID}  trace ",
        f"CHILD_SPAWNED  {FIRST_ID}  reader",
        f"CHILD_SPAWNED  {SECOND_ID}  writer",
    ]


async def watched(mesh: FakeMesh, *options: str) -> list[str]:
    """Return the lines of the command."""
    result = await mesh.run("watch", SESSION_ID, "--family", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    lines: list[str] = result.stdout.splitlines()
    return lines


async def test_heading_names_the_session_and_its_agent_where_another_one_goes_on(mesh: FakeMesh) -> None:
    first = spawns_two(mesh, event(3, CLOSED))
    live = mesh.live
    live.happen(event(1, PROVISIONING), FIRST_ID)
    live.append(EntryBody(header=Header()), session_id=SECOND_ID)
    live.append(said("Read it.", role=ROLE_USER), session_id=FIRST_ID)
    live.speak("I read", begins=True, session_id=FIRST_ID)
    live.speak(".", session_id=FIRST_ID)
    live.call("c1", "ask", "why", begins=True, session_id=FIRST_ID)
    live.append(said("I read.", ASKS), completes=True, session_id=FIRST_ID)
    live.append(said("I write."), session_id=SECOND_ID)
    live.append(said("And I wait.\n", ASKS))
    live.append(said(""), session_id=SECOND_ID)
    live.append(said("", ASKS), session_id=SECOND_ID)
    live.happen(event(2, CLOSED), SECOND_ID)
    live.happen(event(2, CLOSED), FIRST_ID)

    assert await watched(mesh) == [
        *first,
        FIRST, "PROVISIONING", "user: Read it.", "I read.", "ask why",
        SECOND, "I write.",
        ROOT, "And I wait.", "ask why",
        SECOND, "ask why", "CLOSED",
        FIRST, "CLOSED",
        ROOT, "CLOSED",
    ]  # fmt: skip


async def test_without_the_option_there_is_only_the_session(mesh: FakeMesh) -> None:
    first = spawns_two(mesh)
    mesh.live.append(said("I read."), session_id=FIRST_ID)
    mesh.live.append(said("I wait."))

    result = await mesh.run("watch", SESSION_ID)

    assert result.stdout.splitlines() == [*first, "I wait."]


async def test_drafts_at_the_same_time_do_not_mix(mesh: FakeMesh) -> None:
    first = spawns_two(mesh)
    live = mesh.live
    live.speak("I re", begins=True, session_id=FIRST_ID)
    live.speak("I wri", begins=True, session_id=SECOND_ID)
    live.speak("ad", session_id=FIRST_ID)
    live.append(said(""), session_id=SECOND_ID)
    live.speak(".", session_id=FIRST_ID)
    live.append(said("I read."), completes=True, session_id=FIRST_ID)
    live.speak("te.", session_id=SECOND_ID)
    live.append(said("I write."), completes=True, session_id=SECOND_ID)
    live.speak("And ", begins=True, session_id=SECOND_ID)
    live.speak("so", session_id=SECOND_ID)
    live.append(said("And so"), completes=True, session_id=SECOND_ID)

    assert await watched(mesh) == [*first, FIRST, "I read.", SECOND, "I write.", "And so"]


async def test_text_goes_on_below_a_heading_if_another_session_did_something(mesh: FakeMesh) -> None:
    first = spawns_two(mesh)
    live = mesh.live
    live.speak("I re", begins=True, session_id=FIRST_ID)
    live.happen(run_event(1, RUNNING), SECOND_ID)
    live.speak("a", session_id=FIRST_ID)
    live.speak("d", session_id=FIRST_ID)
    live.speak("I wri", begins=True, session_id=SECOND_ID)
    live.append(said("I write."), completes=True, session_id=SECOND_ID)
    live.call("c1", "ask", "why", begins=True, session_id=FIRST_ID)
    live.append(said("I read", ASKS), completes=True, session_id=FIRST_ID)
    live.speak("Done", begins=True, session_id=FIRST_ID)
    live.happen(run_event(2, SUCCEEDED), SECOND_ID)
    live.append(said("Done"), completes=True, session_id=FIRST_ID)
    live.happen(event(3, CLOSED), SECOND_ID)

    assert await watched(mesh) == [
        *first,
        FIRST, "I re",
        SECOND, f"RUN  RUNNING  {RUN_ID}",
        FIRST, "…ad",
        SECOND, "I write.",
        FIRST, "ask why", "Done",
        SECOND, f"RUN  SUCCEEDED  {RUN_ID}", "CLOSED",
    ]  # fmt: skip


async def test_only_text_that_was_printed_is_retracted(mesh: FakeMesh) -> None:
    first = spawns_two(mesh)
    live = mesh.live
    live.speak("I re", begins=True, session_id=FIRST_ID)
    live.speak("I wri", begins=True, session_id=SECOND_ID)
    live.retract(SECOND_ID)
    live.happen(run_event(1, RUNNING), SECOND_ID)
    live.retract(FIRST_ID)
    live.speak("I write", begins=True, session_id=SECOND_ID)
    live.retract(SECOND_ID)

    assert await watched(mesh) == [
        *first,
        FIRST, "I re",
        SECOND, f"RUN  RUNNING  {RUN_ID}",
        FIRST, RETRACTED,
        SECOND, "I write", RETRACTED,
    ]  # fmt: skip


async def test_hint_is_about_the_session_that_waits(mesh: FakeMesh) -> None:
    child = session_pb2.Session(session_id=FIRST_ID, agent_id="reader")
    child.latest_run.state, child.latest_run.approval_id = WAITING, "apr_1"
    mesh.sessions.known.append(child)
    first = spawns_two(mesh)
    mesh.live.happen(run_event(1, WAITING), FIRST_ID)
    mesh.live.append(said("I wait."))

    assert await watched(mesh) == [
        *first,
        FIRST,
        f"RUN  WAITING_APPROVAL  {RUN_ID}",
        "waits for approval apr_1: spawnmesh approvals show apr_1",
        ROOT,
        "I wait.",
    ]


async def test_json_names_the_session_in_each_line(mesh: FakeMesh) -> None:
    spawns_two(mesh)
    mesh.live.speak("I re", begins=True, session_id=FIRST_ID)
    mesh.live.speak("I wri", begins=True, session_id=SECOND_ID)
    mesh.live.retract(FIRST_ID)

    lines: list[dict[str, Any]] = [json.loads(line) for line in await watched(mesh, "--json")]

    assert [line["session_id"] for line in lines] == [SESSION_ID, SESSION_ID, FIRST_ID, SECOND_ID, FIRST_ID]
    assert [list(line)[2] for line in lines[1:]] == [
        "session_event", "draft_delta", "draft_delta", "draft_retracted",
    ]  # fmt: skip
    for place, line in enumerate(lines, 1):
        rest = await watched(mesh, "--json", "--after", line["cursor"])
        assert [json.loads(line) for line in rest] == lines[place:]


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_agent_is_looked_up_if_the_spawn_was_before_the_cursor(
    mesh: FakeMesh, is_deleted: bool
) -> None:
    spawns_two(mesh)
    mesh.live.append(said("I read."), session_id=FIRST_ID)
    mesh.live.append(said("I write."), session_id=SECOND_ID)
    mesh.live.append(said("So do I."), session_id=FIRST_ID)
    if not is_deleted:
        mesh.sessions.known.append(session_pb2.Session(session_id=FIRST_ID, agent_id="reader"))

    lines = await watched(mesh, "--after", "2.0")

    nameless = f"— {SECOND_ID} —"
    found = f"— {FIRST_ID} —" if is_deleted else FIRST
    assert lines[1:] == [found, "I read.", nameless, "I write.", found, "So do I."]


async def test_ctrl_c_says_how_to_go_on_with_the_family(mesh: FakeMesh) -> None:
    mesh.sessions.known.append(session_pb2.Session(session_id=FIRST_ID, agent_id="reader"))
    spawns_two(mesh)
    mesh.sessions.hold = asyncio.Event()
    mesh.live.speak("Half of", begins=True, session_id=FIRST_ID)
    command = (SPAWNMESH, "--data", str(mesh.data), "watch", SESSION_ID, "--family")
    child = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert child.stdout is not None
    printed = b""
    async with asyncio.timeout(SECONDS):
        while b"Half of" not in printed:
            printed += await child.stdout.read(1000)
        child.send_signal(signal.SIGINT)
        _, errors = await child.communicate()
    found = re.fullmatch(
        rf"continue with `spawnmesh (watch {SESSION_ID} --family --after \S+)`\n", errors.decode()
    )
    assert found is not None, errors

    mesh.sessions.hold.set()
    mesh.live.speak(" it", session_id=FIRST_ID)
    mesh.live.append(said("Half of it"), completes=True, session_id=FIRST_ID)
    continued = await mesh.run(*shlex.split(found[1]))
    assert continued.stdout.splitlines()[1:] == [FIRST, "Half of it"]
