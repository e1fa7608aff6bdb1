"""Refusals and errors are one line, with facts and what to do; or JSON."""

import json
import re

import pytest
from spawnmesh_core.errors import FieldViolation, MeshError, not_found
from spawnmesh_core.reasons import Reason

from tests.support.command.fake_mesh import invoke, mesh, run_main, unset, write_mesh_file

__all__ = ["mesh", "unset"]


async def test_a_refusal_is_one_line_with_facts_and_what_to_do(mesh):
    mesh.sessions.refusal = MeshError(
        Reason.RUN_QUEUE_FULL, "the tenant's queue is full", facts={"limit": 1000, "queued": 1000}
    )

    result = await mesh.run("spawn", "Work.")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: RUN_QUEUE_FULL: the tenant's queue is full (limit=1000, queued=1000)."
        " try again when runs have ended\n"
    )


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("session", ". `spawnmesh sessions` lists what there is"),
        ("transcript", ". `spawnmesh sessions` lists what there is"),
        ("tenant", ". `spawnmesh tenant list` lists what there is"),
        ("plugin", ". `spawnmesh hooks list` lists what there is"),
        ("attachment set", ". `spawnmesh attachments list` lists what there is"),
        ("file of that name in attachment set", ". `spawnmesh attachments show x` lists what there is"),
        ("model, credential or provider", ". `spawnmesh router health` lists what there is"),
        ("upload", ""),
    ],
)
async def test_not_found_names_the_command_that_lists_the_kind(mesh, kind, advice):
    mesh.sessions.refusal = not_found(kind, "x")

    result = await mesh.run("spawn", "Work.")

    assert result.stderr == f"error: NOT_FOUND: there is no {kind} x here{advice}\n"


async def test_a_refused_file_is_named(mesh, tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    mesh.sessions.refusal = MeshError(Reason.ATTACHMENTS_FILE_BYTES_EXCEEDED, "too large", facts={"index": 1})
    files = ("--attach", str(tmp_path / "a.txt"), "--attach", str(tmp_path / "b.txt"))

    told, document = (
        await mesh.run("spawn", "Work.", *files),
        await mesh.run("spawn", "Work.", *files, "--json"),
    )

    assert told.stderr == (
        "error: ATTACHMENTS_FILE_BYTES_EXCEEDED: too large (file=b.txt, index=1). send fewer"
        " or smaller files, or have the tenant's limits raised\n"
    )
    assert json.loads(document.stdout)["error"]["facts"]["file"] == "b.txt"


async def test_a_refusal_as_json_has_reason_message_and_facts(mesh):
    mesh.sessions.refusal = MeshError(Reason.RUN_QUEUE_FULL, "full", facts={"limit": 1000})

    result = await mesh.run("spawn", "Work.", "--json")

    assert (result.exit_code, result.stderr) == (1, "")
    assert json.loads(result.stdout) == {
        "error": {"reason": "RUN_QUEUE_FULL", "message": "full", "facts": {"limit": "1000"}}
    }


async def test_every_malformed_field_is_reported(mesh):
    mesh.sessions.refusal = MeshError(
        Reason.INVALID_REQUEST,
        "a: bad",
        violations=(FieldViolation("a", "bad"), FieldViolation("b", "worse")),
    )

    result = await mesh.run("spawn", "Work.")

    assert result.stderr == "error: INVALID_REQUEST: a: bad; b: worse\n"


async def test_a_refusal_cannot_command_the_terminal(mesh):
    mesh.sessions.refusal = MeshError(Reason.SPAWN_REFUSED, "no\x1b[2J\nerror: all is well")

    result = await mesh.run("spawn", "Work.")

    assert result.stderr == "error: SPAWN_REFUSED: no\\x1b[2J\\nerror: all is well\n"


@pytest.mark.parametrize("command", [("sessions",), ("doctor",), ("token",), ("tenant", "list")])
def test_without_a_mesh_one_line_says_how_to_get_one(tmp_path, command):
    result = invoke("--data", str(tmp_path), *command)

    assert result.exit_code == 1
    assert result.stderr == (
        "error: DEPENDENCY_UNAVAILABLE: no mesh found: name one with SPAWNMESH_URL, or start one here with"
        " `spawnmesh up`, which the package spawnmesh brings\n"
    )


def test_an_unavailable_mesh_is_reported_in_one_line(tmp_path, keys):
    write_mesh_file(tmp_path, keys, {"session": "127.0.0.1:1"})

    result = invoke("--data", str(tmp_path), "sessions")

    assert result.exit_code == 1
    assert re.fullmatch(
        r"error: DEPENDENCY_UNAVAILABLE: session does not answer at 127\.0\.0\.1:1 \(.*refused\);"
        r" call again later\. `spawnmesh doctor` shows what is down; `spawnmesh up` starts a mesh here\n",
        result.stderr,
    )


def test_settings_that_cannot_be_read_are_named_without_their_value(tmp_path, monkeypatch):
    monkeypatch.setenv("SPAWNMESH_MAX_MESSAGE_BYTES", "a lot")

    result = invoke("--data", str(tmp_path), "sessions")

    assert result.exit_code == 1
    assert result.stderr == "error: INVALID_REQUEST: settings cannot be read: SPAWNMESH_MAX_MESSAGE_BYTES\n"


@pytest.mark.parametrize(
    "arguments",
    [("spawn",), ("spawn", "Work.", "--attach", "missing"), ("kill",), ("nonsense",), ("sessions", "--x")],
)
def test_wrong_usage_exits_with_2(arguments):
    assert invoke(*arguments).exit_code == 2


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_internal_error_is_reported_without_a_traceback(tmp_path, monkeypatch, capsys, options):
    """Here another package breaks the command before it starts."""
    add_broken_commands(tmp_path, monkeypatch)

    exit_code = run_main(monkeypatch, *options)

    printed = capsys.readouterr()
    assert exit_code == 1
    if options:
        assert printed.err == ""
        assert json.loads(printed.out)["error"]["reason"] == "INTERNAL"
    else:
        assert printed.out == ""
        assert printed.err == "error: unexpected TypeError: 'NoneType' object is not callable\n"


def add_broken_commands(folder, monkeypatch):
    """Install a package whose entry point for commands cannot be called."""
    (folder / "broken_commands.py").write_text("add_commands = None\n")
    (package := folder / "broken_commands-1.dist-info").mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-commands\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[spawnmesh.commands]\nbroken = broken_commands:add_commands\n")
    monkeypatch.syspath_prepend(folder)
