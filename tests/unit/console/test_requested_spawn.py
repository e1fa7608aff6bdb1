"""The code beside the form makes the call that the form stands for."""

import ast
import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.json_format import ParseDict
from spawnmesh.session.v1 import budget_pb2
from spawnmesh_client.budget_views import Budget
from spawnmesh_client.budgets import budget_message
from spawnmesh_command.cli.budgets import budget_of
from spawnmesh_console.domain.budget_limits import LimitTexts
from spawnmesh_console.domain.requested_spawn import RequestedSpawn, spawn_code

TASKS = ("Say hello.", "-x", 'it\'s "$HOME" `id` $(id) \\n\n!! %s 漢 \U0001f600 \u202e \U000e0041\t</pre>')
NAME = "it's $HOME `id` file.txt"
LIMITS = LimitTexts("0.50", "200000", "40", "1h30m0.25s")
BUDGET = Budget(cost=0.5, tokens=200_000, calls=40, run_time=5400.25)
FAKE_CURL = 'curl() { printf "%s\\0" "$@"; cat; }; uuidgen() { echo an-id; }; '


def _code(asked: RequestedSpawn) -> dict[str, str]:
    return dict(spawn_code(asked))


@pytest.mark.parametrize("task", TASKS)
def test_python_passes_what_was_asked(task: str) -> None:
    code = _code(RequestedSpawn(task, "clerk", "a/b", "it's", is_open=True, file_names=(NAME, "b.txt")))[
        "Python"
    ]
    (call,) = [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "spawn"
    ]
    assert [ast.literal_eval(one) for one in call.args] == [task]
    assert {one.arg: ast.literal_eval(one.value) for one in call.keywords} == {
        "agent": "clerk",
        "model": "a/b",
        "label": "it's",
        "mode": "SESSION",
        "attachments": [NAME, "b.txt"],
    }


@pytest.mark.parametrize("task", TASKS)
def test_the_command_passes_what_was_asked(task: str) -> None:
    words = shlex.split(_code(RequestedSpawn(task, label="it's", file_names=(NAME,)))["Command"])
    assert words[:2] == ["spawnmesh", "spawn"]
    options = ["--label", "it's", "--attach", NAME, "--wait"]
    assert words[2:] == ([*options, "--", task] if task.startswith("-") else [task, *options])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("names", [(), (NAME,), (NAME, "b.txt")])
def test_the_shell_sends_what_was_asked(task: str, names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"\x00\xff")
    code = _code(RequestedSpawn(task, "clerk", is_open=True, file_names=names))["curl"]
    ran = subprocess.run(
        ["bash", "-c", FAKE_CURL + code],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "SPAWNMESH_URL": "https://x", "SPAWNMESH_TOKEN": "t"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    *arguments, last = ran.stdout.decode().split("\0")
    assert arguments[:4] == ["https://x/v1/sessions", "--header", "authorization: Bearer t", "--json"]
    body = json.loads(last if names else arguments[4])
    files = [{"name": name, "data": "AP8="} for name in names]
    assert body == {
        "request_id": "an-id",
        "task": task,
        "agent_id": "clerk",
        "mode": "SESSION_MODE_SESSION",
        **({"attachments": files} if files else {}),
    }


def test_typescript_has_the_texts_as_literals_of_json() -> None:
    code = _code(RequestedSpawn(TASKS[2], "clerk", file_names=(NAME,)))["TypeScript"]
    (line,) = [line for line in code.splitlines() if "spawn(" in line]
    literal = line.removeprefix("const session = await mesh.spawn(").removesuffix(", {")
    assert json.loads(literal) == TASKS[2]
    assert "\u202e" not in code
    assert f'  attachments: [{{ path: "{NAME}" }}],\n}});' in code
    assert 'spawn("Say hello.");' in _code(RequestedSpawn())["TypeScript"]


def test_each_language_has_the_budget() -> None:
    code = _code(RequestedSpawn("x", limits=LIMITS))
    (call,) = [
        node
        for node in ast.walk(ast.parse(code["Python"]))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Budget"
    ]
    assert Budget(**{str(one.arg): ast.literal_eval(one.value) for one in call.keywords}) == BUDGET
    assert "import Budget, connect" in code["Python"]
    assert "  budget: { cost: 0.5, tokens: 200000, calls: 40, runTimeMs: 5400250 },\n" in code["TypeScript"]
    words = shlex.split(code["Command"])
    rounded = replace(BUDGET, run_time=5401)
    assert budget_of(words[words.index("--budget") + 1]) == budget_message(rounded)
    body = code["curl"].partition("--json ")[2].replace("'", "").replace('"$(uuidgen)"', "")
    assert ParseDict(json.loads(body)["budget"], budget_pb2.Budget()) == budget_message(BUDGET)


def test_code_without_a_limit_or_with_half_a_limit_has_no_budget() -> None:
    for limits in (LimitTexts(), LimitTexts(cost="0."), LimitTexts(time="10")):
        code = _code(RequestedSpawn("x", limits=limits))
        assert not [text for text in code.values() if "udget" in text]
    only_calls = _code(RequestedSpawn("x", limits=LimitTexts(calls="3")))
    assert "budget=Budget(calls=3)" in only_calls["Python"]
    assert "--budget calls=3 " in only_calls["Command"]


def test_the_fields_of_a_form_are_read() -> None:
    fields = {
        "task": "a\r\nb",
        "agent": " default ",
        "model": " a/b ",
        "label": " x ",
        "open": "yes",
        "limit_calls": " 40 ",
        "no": "1",
    }
    limits = LimitTexts(calls="40")
    assert RequestedSpawn.of(fields, ["a.txt"]) == RequestedSpawn(
        "a\nb", "", "a/b", "x", True, ("a.txt",), limits
    )
    assert RequestedSpawn.of({"task": 3}) == RequestedSpawn()


def test_a_long_task_is_shown_by_its_beginning() -> None:
    assert len(_code(RequestedSpawn("x" * 100_000))["curl"]) < 3000
