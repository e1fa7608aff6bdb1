"""The command `spawnmesh session diff` shows where two sessions went apart."""

import json
import sys
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_client.divergence import find_divergence
from spawnmesh_client.session_diff import WireDiff
from spawnmesh_command.cli.answer_diff import line_parts, word_parts
from spawnmesh_command.cli.session_diff_text import DiffPrinter, side_by_side
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.client.diff_entries import (
    answer,
    calls,
    final,
    header,
    note,
    reading,
    result,
    superseded,
    transcript,
    user,
)
from tests.support.command.fake_mesh import SESSION_ID, FakeMesh, mesh, session_in, unset

__all__ = ["mesh", "unset"]

FORK_ID = "ses_01k00000000000000000000000"
OTHER_ID = "ses_01k00000000000000000000001"
HOSTILE = "\x1b[31mred\u202eslaet\r\n+   9  user\u2028x"
GOLDEN = f"""\
         - A                             + B
session  {SESSION_ID}  {FORK_ID}
label    first
agent    default                         default v3
models   fake/one                        fake/two
state    ACTIVE, SUCCEEDED               CLOSED, SUCCEEDED
family   46 tokens, cost 0.52            46 tokens, cost 0.52

B was forked from A at entry 4
the same up to entry 4 of A and entry 3 of B (2 messages)

-    5  assistant (fake/one)
-       [calls read_file] {{"path": "a.txt"}}
-    6  tool result (read_file)
-       40
-       41
-    7  assistant (fake/one)
-       The total is 41 euros.
+    4  user
+       again
+    5  assistant (fake/two), superseded
+       [thinking] hm
+       draft
+    6  label
+       the draft before it is superseded
+    7  assistant (fake/two)
+       [calls read_file] {{"path": "b.txt"}}
+    8  tool result (read_file, failed)
+       no such file
+    9  assistant (fake/two)
+       The total is 42 euros, I think.

the answers:
The total is [-41-]{{+42+}} euros{{+, I think+}}.

               - A     + B
ended runs     2       2
input tokens   12,345  12,345
output tokens  0       0
cost           0.00    0.00
"""


def succeeded(text: str, session_id: str = SESSION_ID, **fields: Any) -> session_pb2.Session:
    """Return a session with this answer."""
    session = session_in(session_pb2.RUN_STATE_SUCCEEDED, text)
    session.MergeFrom(session_pb2.Session(session_id=session_id, **fields))
    return session


def serve(mesh: FakeMesh, a: list[Entry], b: list[Entry], answers: tuple[str, str] = ("", "")) -> None:
    """Serve two sessions that are no forks, with these transcripts."""
    mesh.sessions.known = [succeeded(answers[0]), succeeded(answers[1], OTHER_ID)]
    mesh.transcript.of_sessions = {SESSION_ID: a, OTHER_ID: b}


async def shown(mesh: FakeMesh, *options: str, b: str = OTHER_ID) -> str:
    """Return the lines of the command without the blanks at their ends."""
    ended = await mesh.run("session", "diff", SESSION_ID, b, *options)
    assert (ended.exit_code, ended.stderr) == (0, "")
    return "".join(f"{line.rstrip()}\n" for line in ended.stdout.split("\n")[:-1])


async def test_fork_is_shown_beside_its_source(mesh: FakeMesh) -> None:
    fork = session_pb2.ForkPoint(session_id=SESSION_ID, seq=4)
    closed = {"state": session_pb2.SESSION_STATE_CLOSED, "agent_version": 3}
    mesh.sessions.known = [
        succeeded("The total is 41 euros.", label="first"),
        succeeded("The total is 42 euros, I think.", FORK_ID, fork=fork, **closed),
    ]
    one = calls(("read_file", {"path": "a.txt"}))
    two = calls(("read_file", {"path": "b.txt"}), model="fake/two")
    mesh.transcript.of_sessions = {
        SESSION_ID: transcript(
            header(), note("files"), user("q"), answer("hm"),
            one, result(one, 0, "40\n41"), answer("The total is 41 euros."), final(),
        ),
        FORK_ID: transcript(
            header(SESSION_ID), user("q"), answer("hm"),
            user("again"), answer("draft", "fake/two", "hm"), superseded(),
            two, result(two, 0, "no such file", is_error=True),
            answer("The total is 42 euros, I think.", "fake/two"), final(),
        ),
    }  # fmt: skip
    usage = mesh.budgets.usage
    usage.family.usage.cost_micros, usage.family.usage.output_token_count = 520_000, 46
    usage.session.usage.input_token_count, usage.session.ended_run_count = 12_345, 2

    assert await shown(mesh, b=FORK_ID) == GOLDEN
    mirrored = await mesh.run("sessions", "diff", FORK_ID, SESSION_ID)
    assert "\nA was forked from B at entry 4\n" in mirrored.stdout
    assert "\nthe same up to entry 3 of A and entry 4 of B (2 messages)\n" in mirrored.stdout


async def test_json_is_one_object_with_the_complete_entries(mesh: FakeMesh) -> None:
    text = "long " * 1000
    serve(mesh, transcript(header(), user("q"), answer(text)), transcript(header(), user("q")), (text, ""))
    ended = await mesh.run("session", "diff", SESSION_ID, OTHER_ID, "--json")
    document = json.loads(ended.stdout)
    assert (document["common_count"], document["common_seq_a"], document["is_equal"]) == (1, "2", False)
    assert document["only_a"][0]["body"]["message"]["content"][0]["text"]["text"] == text
    assert (document["only_b"], document["forked_at"], document["is_cut_a"]) == ([], None, False)
    assert (document["a"]["session_id"], document["b"]["session_id"]) == (SESSION_ID, OTHER_ID)
    assert document["usage_a"] == document["usage_b"] == {"is_family_partial": False, "budgets": []}


async def test_exit_code_says_whether_they_differ(mesh: FakeMesh) -> None:
    serve(mesh, transcript(header(), user("q")), transcript(header(), user("other")))
    arguments = ("session", "diff", SESSION_ID, OTHER_ID)
    assert [(await mesh.run(*arguments, *more)).exit_code for more in ((), ("--exit-code",))] == [0, 1]
    assert (await mesh.run(*arguments, "--exit-code", "--json")).exit_code == 1
    assert (await mesh.run(*arguments, "--exit-code", "--limit", "0")).exit_code == 1
    mesh.transcript.of_sessions[OTHER_ID] = transcript(header(), user("q"), final())
    same = await mesh.run(*arguments, "--exit-code")
    assert (same.exit_code, "\nthe same: 1 message\n" in same.stdout) == (0, True)


async def test_session_that_is_not_found_is_no_difference(mesh: FakeMesh) -> None:
    arguments = ("session", "diff", SESSION_ID, OTHER_ID)
    refused = await mesh.run(*arguments)
    assert (refused.exit_code, refused.stdout, "NOT_FOUND" in refused.stderr) == (1, "", True)
    assert (await mesh.run(*arguments, "--exit-code")).exit_code == 2


async def test_sessions_without_entries_say_so(mesh: FakeMesh) -> None:
    serve(mesh, [], [])
    mesh.transcript.missing = {SESSION_ID}
    assert "\nthe same: neither has entries\n" in await shown(mesh)
    mesh.transcript.of_sessions[OTHER_ID] = transcript(header(), user("q"))
    printed = await shown(mesh)
    assert "\nthey differ from the first entry on\n\n+    2  user\n+       q\n" in printed
    assert "answer" not in printed


async def test_forks_of_a_third_session_say_so(mesh: FakeMesh) -> None:
    serve(mesh, [], [])
    for session, seq in zip(mesh.sessions.known, (5, 9), strict=True):
        session.fork.session_id, session.fork.seq = FORK_ID, seq
    assert f"\nboth were forked from {FORK_ID}: A at entry 5, B at entry 9\n" in await shown(mesh)


async def test_long_source_says_what_the_copy_leaves_out(mesh: FakeMesh) -> None:
    serve(
        mesh,
        transcript(header(), user("1"), answer("2"), user("3"), answer("4")),
        transcript(header(SESSION_ID), user("3"), answer("4"), user("own")),
    )
    mesh.sessions.known[1].fork.session_id, mesh.sessions.known[1].fork.seq = SESSION_ID, 5
    printed = await shown(mesh)
    assert "\nthe copy begins behind the first messages of the source: 2 are left out\n" in printed
    assert "\nthe same up to entry 5 of A and entry 3 of B (2 messages)\n\n+    4  user\n" in printed


async def test_hostile_text_can_neither_control_the_terminal_nor_look_like_an_entry(mesh: FakeMesh) -> None:
    named = answer(HOSTILE, model=f"fake/{HOSTILE}")
    serve(mesh, transcript(header(), named), transcript(header(), note(HOSTILE)), (HOSTILE, f"{HOSTILE}."))
    mesh.sessions.known[0].label = HOSTILE
    for options in ((), ("--full",), ("--json",)):
        printed = await shown(mesh, *options)
        assert all(char.isprintable() for char in printed.replace("\n", ""))
    lines = (await shown(mesh)).split("\n")
    assert "-       \\x1b[31mred\\u202eslaet\\r" in lines
    assert "-       +   9  user\\u2028x" in lines
    assert "+   9  user\\u2028x" not in lines
    for session, end in zip(mesh.sessions.known, "ab", strict=True):
        session.latest_run.result_text = f"\x1b[31m\u202eslaet\r{end}"
    assert "\n\\x1b[31m\\u202eslaet\\r[-a-]{+b+}\n" in await shown(mesh)


async def test_long_text_is_cut_unless_it_is_wanted(mesh: FakeMesh) -> None:
    lines = "\n".join(f"line {number}" for number in range(20))
    called = calls(("write", {"text": "a" * 1000}))
    serve(mesh, transcript(header(), answer(lines), called), transcript(header()))
    printed = await shown(mesh)
    assert "-       line 11… (a long text is cut: --full shows all)\n-    3" in printed
    assert ("line 12" in printed, "a" * 500 in printed, "a" * 300 in printed) == (False, False, True)
    full = await shown(mesh, "--full")
    assert ("line 19" in full, "a" * 1000 in full, "is cut" in full) == (True, True, False)


async def test_limit_says_that_there_is_more(mesh: FakeMesh) -> None:
    serve(mesh, transcript(header(), *map(user, "abc")), transcript(header(), user("d")))
    printed = await shown(mesh, "--limit", "1")
    assert "-       a\n- … more entries: --limit shows more\n+    2  user\n+       d\n" in printed
    assert "+ … more" not in printed


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (("42", "42"), "the answers are the same\n"),
        (("42", ""), "only A has an answer\n"),
        (("", "42"), "only B has an answer\n"),
        (("one\ntwo\n", "one\n2\n"), "the answers:\n@@ -1,3 +1,3 @@\n  one\n- two\n+ 2\n"),
        (("a " * 9999, "b " * 9999), "the answers:\n@@ -1 +1 @@\n- a a"),
        (("a\n" * 9999, "b\n" * 9999), "the answers differ; they are too long to be compared here\n"),
    ],
    ids=["same", "first", "second", "lines", "many words", "many lines"],
)
async def test_answers_are_compared(mesh: FakeMesh, answers: tuple[str, str], said: str) -> None:
    serve(mesh, transcript(header(), user("q")), transcript(header(), user("q")), answers)
    assert f"\n{said}" in await shown(mesh)


async def test_usage_that_is_not_known_is_left_out(mesh: FakeMesh) -> None:
    serve(mesh, transcript(header(), user("q")), transcript(header(), user("q")))
    mesh.budgets.refusal = MeshError(Reason.INTERNAL, "no")
    printed = await shown(mesh)
    assert printed.endswith("\nthe same: 1 message\n")
    assert "family" not in printed


def test_parts_of_an_answer_make_up_both_answers() -> None:
    old, new = "The total is 41 euros.", "Well: the total is 42 euros"
    parts = word_parts(old, new)
    assert parts is not None
    assert "".join(text for mark, text in parts if mark != "+") == old
    assert "".join(text for mark, text in parts if mark != "-") == new
    assert ("-", "41") in parts
    assert word_parts("a\nb", "a") is None
    assert line_parts("a", "a") == []


def test_wide_terminal_has_a_column_for_each_session() -> None:
    console = Console(width=40, force_terminal=False)
    with console.capture() as captured:
        console.print(side_by_side([Text("- 5 a\n- b"), Text("- 6 " + "c" * 20)], [Text("+ 5 d")]))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert [line.split() for line in lines[:2]] == [["-", "5", "a", "+", "5", "d"], ["-", "b"]]
    assert lines[0].index("+") == 21


@pytest.mark.parametrize(("columns", "is_beside"), [("139", False), ("140", True)])
async def test_colours_and_columns_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str, is_beside: bool
) -> None:
    one, other = transcript(user("a")), transcript(user("b"))
    found = await find_divergence(reading(one), reading(other), max_entries=9)
    for name, value in {"COLUMNS": columns, "TERM": "xterm", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    DiffPrinter(WireDiff(succeeded(""), succeeded("", OTHER_ID), None, found)).print(None, None)
    printed = capsys.readouterr().out
    first = next(line for line in printed.splitlines() if "-    1  user" in line)
    assert ("+    1  user" in first) is is_beside
    assert "\x1b[1;31m-    1  user" in first
