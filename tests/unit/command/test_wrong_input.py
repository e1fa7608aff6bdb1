"""Invalid input is reported in one line, and to programs as JSON."""

import json
import os
from pathlib import Path

import pytest
from spawnmesh_command.cli.run import reported

from tests.support.command.fake_mesh import SESSION_ID, FakeMesh, invoke, mesh, run_main, unset

__all__ = ["mesh", "unset"]

TOO_LARGE = "9" * 20


@pytest.mark.parametrize(
    "arguments",
    [
        ("transcript", "context", SESSION_ID, "--budget", TOO_LARGE),
        ("transcript", "search", SESSION_ID, "x", "--after", TOO_LARGE),
        ("transcript", "search", SESSION_ID, "x", "--before", TOO_LARGE),
        ("tenant", "update", "acme", "--set", f"max_spawn_depth={TOO_LARGE}"),
        ("hooks", "register", "a", "grpc://h:1", "--hook", "before_spawn", "--priority", TOO_LARGE),
        ("hooks", "log", "--since", "1e300"),
    ],
)
async def test_a_number_that_no_request_carries_is_wrong_usage(
    mesh: FakeMesh, arguments: tuple[str, ...]
) -> None:
    assert (await mesh.run(*arguments)).exit_code == 2


@pytest.mark.parametrize("texts", [["ticket"], ["ticket=1", "ticket=2"]])
async def test_metadata_that_is_no_pair_of_its_own_is_wrong_usage(mesh: FakeMesh, texts: list[str]) -> None:
    given = [part for text in texts for part in ("--metadata", text)]
    result = await mesh.run("spawn", "Sum it up.", *given)
    assert result.exit_code == 2
    assert f"'{texts[-1]}' is not KEY=VALUE" in " ".join(result.stderr.split())
    assert mesh.sessions.requests == []


@pytest.mark.parametrize("around", ["{}\r\n", " {}", "{}\n"])
async def test_space_around_a_token_is_none_of_it(
    mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch, around: str
) -> None:
    made = (await mesh.run("--tenant", "acme", "token")).stdout.strip()
    monkeypatch.setenv("SPAWNMESH_TOKEN", around.format(made))

    assert (await mesh.run("kill", SESSION_ID)).exit_code == 0
    assert mesh.sessions.tenants == ["acme"]


@pytest.mark.parametrize("token", ["ab\rc", "ab\nc", "ab c", "ab\x01c", "äb"])
async def test_a_token_with_what_no_token_has_is_refused_and_not_shown(
    mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("SPAWNMESH_TOKEN", token)

    told, document = await mesh.run("sessions"), await mesh.run("sessions", "--json")

    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr.startswith("error: TOKEN_INVALID: SPAWNMESH_TOKEN has a character that no token has")
    assert (told.stderr.count("\n"), token in told.stderr) == (1, False)
    assert (document.exit_code, json.loads(document.stdout)["error"]["reason"]) == (1, "TOKEN_INVALID")


async def test_names_and_arguments_that_are_not_utf8_are_reported(mesh: FakeMesh, tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.txt"))
    file.write_text("x")

    told = await mesh.run("spawn", "Work.", "--attach", str(file))
    document = await mesh.run("spawn", "Work.", "--attach", str(file), "--json")
    task = await mesh.run("spawn", os.fsdecode(b"\xff"))

    assert told.stderr == (
        "error: ATTACHMENTS_INVALID_NAME: the name of a file is no UTF-8 text"
        " (file=a\\udcff.txt). rename the file\n"
    )
    assert json.loads(document.stdout)["error"]["reason"] == "ATTACHMENTS_INVALID_NAME"
    assert (task.exit_code, task.stderr) == (1, "error: INVALID_REQUEST: an argument is no UTF-8 text\n")
    assert mesh.sessions.requests == []


async def test_an_unnamed_service_is_reported_with_its_variable(mesh: FakeMesh) -> None:
    told, document = await mesh.run("hooks", "list"), await mesh.run("hooks", "list", "--json")

    line = "the target of hook is not known: set it with SPAWNMESH_HOOK_TARGET"
    assert (told.exit_code, told.stderr) == (1, f"error: DEPENDENCY_UNAVAILABLE: {line}\n")
    assert json.loads(document.stdout)["error"]["message"] == line


def test_an_invalid_listen_address_is_reported() -> None:
    result = invoke("hooks", "serve", "my_plugin", "--listen", "garbage")

    assert (result.exit_code, result.stderr) == (1, "error: INVALID_REQUEST: --listen must be host:port\n")


def test_settings_of_a_plugin_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPAWNMESH_PLUGIN_MAX_MESSAGE_BYTES", "a lot")

    result = invoke("hooks", "serve", "my_plugin")

    told = "error: INVALID_REQUEST: settings cannot be read: SPAWNMESH_PLUGIN_MAX_MESSAGE_BYTES\n"
    assert (result.exit_code, result.stderr) == (1, told)


@pytest.mark.parametrize(
    ("option", "names"),
    [
        (("--hook", "nope"), "before_spawn"),
        (("--hook", "unspecified"), "before_spawn"),
        (("--hook", "before_spawn", "--policy", "maybe"), "open, closed"),
        (
            ("--hook", "before_spawn", "--grant", "all"),
            "conversation_access, finalize_control, prompt_injection",
        ),
    ],
)
async def test_an_unknown_word_is_reported_with_the_known_ones(
    mesh: FakeMesh, option: tuple[str, ...], names: str
) -> None:
    result = await mesh.run("hooks", "register", "a", "grpc://h:1", *option)

    said = " ".join(result.stderr.replace("│", "").split())
    assert (result.exit_code, f"known are {names}" in said) == (2, True), said
    assert [
        word
        for word in ("unspecified", "kind_", "policy_", "grant_")
        if word in said.partition("known are ")[2]
    ] == []


def test_what_a_terminal_cannot_show_is_not_blamed_on_an_argument() -> None:
    with pytest.raises(UnicodeEncodeError), reported(as_json=False):
        "ä".encode("ascii")


async def test_a_decision_that_there_is_not_is_no_empty_answer(mesh: FakeMesh) -> None:
    result = await mesh.run("hooks", "log", "--decision", "fail")

    assert (result.exit_code, "failed" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("transcript", "search", "ses_x"),
        ("router", "explain"),
        ("hooks", "register", "--hook", "before_spawn", "a"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_argument_that_is_no_text(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    options: tuple[str, ...],
) -> None:
    exit_code = run_main(monkeypatch, *arguments, os.fsdecode(b"\xff"), *options)

    printed = capsys.readouterr()
    report, other = (printed.out, printed.err) if options else (printed.err, printed.out)
    assert (exit_code, "an argument is no UTF-8 text" in report, other) == (1, True, ""), printed


def test_url_that_is_none_is_refused_by_the_name_of_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPAWNMESH_URL", "mesh.example.com:443")

    result = invoke("--data", str(tmp_path), "sessions")

    assert result.exit_code == 1
    told = "error: INVALID_REQUEST: settings cannot be read: SPAWNMESH_URL, which is http://host:port or"
    assert result.stderr == f"{told} https://host\n"
