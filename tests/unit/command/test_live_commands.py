"""`spawnmesh watch` and `spawn --wait` print what happens in a session as it happens."""

import asyncio
import json
import re
import shlex
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_TOOL_RESULT, ROLE_USER
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1.entry_pb2 import EntryBody, Header, Label, SystemNote
from spawnmesh_command.cli import live
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.command.fake_mesh import RUN_ID, SESSION_ID, FakeMesh, event, mesh, session_in, unset
from tests.support.command.live import run_event, said

__all__ = ["mesh", "unset"]

SPAWNMESH = str(Path(sys.executable).with_name("spawnmesh"))
CLOSED = event(2, session_pb2.SESSION_EVENT_KIND_CLOSED)
SUCCEEDED, FAILED = session_pb2.RUN_STATE_SUCCEEDED, session_pb2.RUN_STATE_FAILED
RETRACTED = "— retracted: the text above does not count —"
SECONDS = 60.0


def append(mesh: FakeMesh, body: EntryBody, *, completes: bool = False, run_id: str = RUN_ID) -> None:
    entry = mesh.live.entry(body)
    entry.writer.run_id = run_id
    mesh.live.send(entry, completes=completes)


def ends(mesh: FakeMesh, state: "session_pb2.RunState.ValueType" = SUCCEEDED) -> None:
    """Let the run end, which the watchers get to know behind all entries."""
    mesh.sessions.events = [run_event(1, state, RUN_ID), CLOSED]


async def test_watch_prints_texts_as_they_come_and_calls_and_states_in_lines(mesh: FakeMesh) -> None:
    mesh.sessions.known[0].trace_id = "5a" * 16
    append(mesh, EntryBody(header=Header()))
    append(mesh, said("Work.\nHard.", role=ROLE_USER))
    mesh.live.speak("Fir", begins=True)
    mesh.live.retract()
    mesh.live.speak("I write\n", begins=True)
    append(mesh, EntryBody(system_note=SystemNote(topic="time", text="It is late.")))
    mesh.live.speak("a \x1b[2Jfile")
    mesh.live.think("Hm.\nWhich")
    mesh.live.think(" one?")
    mesh.live.speak(" of text")
    mesh.live.call("c1", "write_file", '{"path": "ä', begins=True)
    mesh.live.call("c1", "write_file", '\\u001b"}\n')
    mesh.live.call("c2", "no\x07args", "", begins=True)
    mesh.live.call("c3", "long", '{"text": "' + "y" * 100, begins=True)
    for _ in range(3):
        mesh.live.call("c3", "long", "y" * 44)
    append(mesh, said("I write\na \x1b[2Jfile of text", ("write_file", "{}")), completes=True)
    calls = [
        ("write_file", '{"type": "toolCall", "name": "write_file", "arguments": {"path": "ä\\u001b"}}'),
        ("other", '{"input": "x"}'),
        ("long", json.dumps({"arguments": {"text": "y" * 2000}})),
        ("broken", "[1]"),
    ]
    append(mesh, said("Without deltas.", *calls))
    append(mesh, said("no\nspace\x07", role=ROLE_TOOL_RESULT, tool_name="write_file", is_error=True))
    append(mesh, said("No draft."))
    append(mesh, EntryBody(label=Label()))
    mesh.live.speak("Lost", begins=True, run_id=RUN_ID)
    append(mesh, said("More?", role=ROLE_USER))
    mesh.live.retract()
    ends(mesh)

    result = await mesh.run("watch", SESSION_ID)

    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.split("\n")
    assert lines == [
        f"{SESSION_ID}  trace {'5a' * 16}",
        "user: Work.\\nHard.",
        "Fir",
        RETRACTED,
        "I write",
        "note: time: It is late.",
        "a \\x1b[2Jfile",
        "thinking: Hm.",
        "Which one?",
        " of text",
        'write_file {"path": "ä\\u001b"}\\n',
        "no\\x07args ",
        'long {"text": "' + "y" * 144 + "…",
        "Without deltas.",
        'write_file {"path": "ä\\u001b"}',
        "other x",
        'long {"text": "' + "y" * 144 + "…",
        "broken [1]",
        "tool result (write_file, failed): no\\nspace\\x07",
        "No draft.",
        "Lost",
        "user: More?",
        RETRACTED,
        f"RUN  SUCCEEDED  {RUN_ID}",
        "CLOSED",
        "",
    ]


async def test_watch_in_json_has_a_cursor_in_each_line_to_continue_behind(mesh: FakeMesh) -> None:
    mesh.live.speak("One", begins=True)
    mesh.live.retract()
    mesh.live.speak("Tw", begins=True)
    mesh.live.speak("o")
    append(mesh, said("Two"), completes=True)
    ends(mesh)

    result = await mesh.run("watch", SESSION_ID, "--json")

    lines = [json.loads(line) for line in result.stdout.splitlines()]
    kinds = ["draft_delta", "draft_retracted", *["draft_delta"] * 2, "entry_appended", *["session_event"] * 2]
    assert [list(line) for line in lines] == [["cursor", "session_id", kind] for kind in kinds]
    assert {line["session_id"] for line in lines} == {SESSION_ID}
    assert lines[0]["draft_delta"]["text"] == "One"
    assert lines[4]["entry_appended"]["entry"]["body"]["message"]["role"] == "ROLE_ASSISTANT"
    assert [line["session_event"]["number"] for line in lines[5:]] == ["1", "2"]
    for place, line in enumerate(lines, 1):
        rest = await mesh.run("watch", SESSION_ID, "--json", "--after", line["cursor"])
        assert [json.loads(line) for line in rest.stdout.splitlines()] == lines[place:]
    text = await mesh.run("watch", SESSION_ID, "--after", lines[2]["cursor"])
    assert text.stdout.splitlines()[1:] == ["…o", f"RUN  SUCCEEDED  {RUN_ID}", "CLOSED"]
    text = await mesh.run("watch", SESSION_ID, "--after", lines[0]["cursor"])
    assert text.stdout.splitlines()[1:3] == [RETRACTED, "Two"], "the text was printed before"


@pytest.mark.parametrize("cursor", ["2", "9" * 20, "x"])
async def test_watch_refuses_a_text_that_is_no_cursor(mesh: FakeMesh, cursor: str) -> None:
    result = await mesh.run("watch", SESSION_ID, "--after", cursor)

    assert (result.exit_code, result.stderr) == (
        1, f"error: INVALID_REQUEST: cursor: is no cursor of a watch like this one of {SESSION_ID}\n",
    )  # fmt: skip


async def test_ctrl_c_ends_a_watch_and_says_how_to_continue(mesh: FakeMesh) -> None:
    mesh.sessions.events = [event(1, session_pb2.SESSION_EVENT_KIND_PROVISIONING)]
    mesh.sessions.hold = asyncio.Event()
    mesh.live.speak("Half of", begins=True)
    command = (SPAWNMESH, "--data", str(mesh.data))
    child = await asyncio.create_subprocess_exec(*command, "watch", SESSION_ID, stdout=PIPE, stderr=PIPE)
    assert child.stdout is not None
    printed = b""
    async with asyncio.timeout(SECONDS):
        while b"Half of" not in printed or b"PROVISIONING" not in printed:
            printed += await child.stdout.read(1000)
        child.send_signal(signal.SIGINT)
        rest, errors = await child.communicate()
    assert (child.returncode, (printed + rest)[-1:]) == (130, b"\n")
    found = re.fullmatch(r"continue with `spawnmesh (.*)`\n", errors.decode())
    assert found is not None, errors

    mesh.sessions.hold = None
    mesh.live.speak(" it")
    append(mesh, said("Half of it"), completes=True)
    continued = await mesh.run(*shlex.split(found[1]))
    assert continued.stdout.splitlines()[1:] == ["…" + " it"]


def test_ctrl_c_repeats_that_the_watch_was_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), live.resumable(live.JsonPrinter(SESSION_ID, "c1")):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == f"continue with `spawnmesh watch {SESSION_ID} --json --after c1`\n"


async def test_spawn_and_wait_prints_the_session_and_then_texts_until_the_run_has_ended(
    mesh: FakeMesh,
) -> None:
    mesh.sessions.outcome = session_in(SUCCEEDED, "It is\nblue.")
    append(mesh, said("An answer in the source of the fork."), run_id="")
    append(mesh, said("Which colour?", role=ROLE_USER))
    mesh.live.speak("It is", begins=True)
    mesh.live.speak("\nblue.")
    append(mesh, said("It is\nblue."), completes=True)
    ends(mesh)

    result = await mesh.run("spawn", "Which colour?", "--wait")
    document = await mesh.run("spawn", "Which colour?", "--wait", "--json")

    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["session", SESSION_ID]
    assert f"{RUN_ID} QUEUED" in result.stdout
    assert [line.split()[0] for line in lines].index("trace") == len(lines) - 4
    assert lines[-3:] == ["user: Which colour?", "It is", "blue."]
    assert json.loads(document.stdout)["latest_run"]["result_text"] == "It is\nblue."


async def test_spawn_and_wait_prints_a_result_that_is_not_the_newest_answer(mesh: FakeMesh) -> None:
    mesh.sessions.outcome = session_in(SUCCEEDED, "green\x07")
    append(mesh, said("blue"))
    ends(mesh)

    result = await mesh.run("spawn", "Which colour?", "--wait")

    assert result.exit_code == 0
    assert result.stdout.endswith("\nblue\n\ngreen\\x07\n")


async def test_spawn_and_wait_says_why_the_run_failed(mesh: FakeMesh) -> None:
    reason = reason_pb2.REASON_ALL_CANDIDATES_FAILED
    mesh.sessions.outcome = session_in(FAILED, error_reason=reason, error_message="no model answered")
    mesh.live.speak("It", begins=True, run_id=RUN_ID)
    append(mesh, EntryBody(system_note=SystemNote(topic="time", text="late")))
    mesh.live.retract()
    ends(mesh, FAILED)

    result = await mesh.run("spawn", "Which colour?", "--wait")

    assert result.exit_code == 1
    assert result.stderr == "error: the run ended as FAILED: ALL_CANDIDATES_FAILED: no model answered\n"
    assert f"It\nnote: time: late\n{RETRACTED}\nRUN  FAILED  {RUN_ID}\n" in result.stdout
    assert f"{RUN_ID} FAILED\n" in result.stdout.partition(RETRACTED)[2]


async def test_spawn_waits_also_if_the_text_cannot_be_read(mesh: FakeMesh) -> None:
    mesh.live.refusals = [MeshError(Reason.ROLE_MISSING, "not for\x07 you")]
    mesh.sessions.events = [run_event(1, session_pb2.RUN_STATE_RUNNING)]
    mesh.sessions.hold = asyncio.Event()

    result = await mesh.run("spawn", "Work.", "--wait")

    assert result.exit_code == 0
    assert result.stdout.endswith("\ndone\n")
    assert result.stderr == ("the session was not followed to its end: ROLE_MISSING: not for\\x07 you\n")


async def test_spawn_says_that_the_end_of_the_run_was_not_heard(
    mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_CATCH_UP_SECONDS", 0.1)
    mesh.sessions.events = [run_event(1, session_pb2.RUN_STATE_RUNNING)]
    mesh.sessions.hold = asyncio.Event()

    result = await mesh.run("spawn", "Work.", "--wait")

    assert result.exit_code == 0
    assert result.stdout.endswith("\ndone\n")
    why = "no news for 0.1 s after the end of the run"
    assert result.stderr == f"the session was not followed to its end: {why}\n"


async def test_spawn_that_waits_in_vain_says_how_to_go_on(mesh: FakeMesh) -> None:
    mesh.sessions.outcome = session_in(session_pb2.RUN_STATE_RUNNING)
    mesh.sessions.hold = asyncio.Event()

    result = await mesh.run("spawn", "Work.", "--wait", "--timeout", "0")

    assert (result.exit_code, f"{RUN_ID} RUNNING" in result.stdout) == (1, True)
    assert result.stderr == f"error: not done after 0 s; continue with `spawnmesh wait {SESSION_ID}`\n"
