"""The commands as they are typed."""

import pytest
import typer
from spawnmesh_devstack.commands import add_commands
from spawnmesh_devstack.up import Telemetry
from typer.testing import CliRunner


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    add_commands(app)
    return app


def test_both_commands_say_what_they_do(app):
    told = CliRunner().invoke(app, ["--help"]).output

    assert "up" in told
    assert "demo" in told


@pytest.mark.parametrize("port", ["session", "session=", "session=x", "session=0", "session=65536"])
def test_port_that_is_none_is_wrong_usage(app, tmp_path, port):
    ended = CliRunner().invoke(app, ["up", "--data", str(tmp_path), "--port", port])

    assert ended.exit_code == 2
    assert "NAME=PORT" in ended.output


def test_port_for_nothing_known_is_told_in_one_line(app, tmp_path):
    ended = CliRunner().invoke(
        app, ["up", "--data", str(tmp_path / "data"), "--port", "hooks=12345"], env=NO_KEYS
    )

    assert ended.exit_code == 1
    assert ended.stderr.strip().splitlines()[-1].startswith("error: nothing is called hooks")


@pytest.mark.parametrize("command", ["up", "demo"])
@pytest.mark.parametrize("model", ["gpt", "smolm2"])
def test_model_that_nobody_has_is_refused_with_those_that_can_be_named(
    app, tmp_path, monkeypatch, command, model
):
    monkeypatch.setenv("SPAWNMESH_DATA", str(tmp_path / "data"))
    ended = CliRunner().invoke(app, [command, "--model", model], env=NO_KEYS)

    assert ended.exit_code == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error: there is no model '{model}' on this machine: name 'smollm2'; or set ")
    assert [name for name in NO_KEYS if name not in line] == []
    assert not (tmp_path / "data").exists()


def test_data_in_a_file_are_told_in_one_line(app, tmp_path):
    (tmp_path / "file").write_text("mine")
    told = []
    for data in ("file", "file/below"):
        ended = CliRunner().invoke(app, ["up", "--data", str(tmp_path / data)], env=NO_KEYS)
        assert ended.exit_code == 1
        told.append(ended.stderr)

    place = f"error: data cannot be kept in {tmp_path}"
    assert told == [
        f"{place}/file: it is a file and no directory\n",
        f"{place}/file/below: Not a directory\n",
    ]


NO_KEYS = dict.fromkeys(("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"), "")


def test_content_of_traces_is_asked_of_the_processes_that_have_it():
    names = {"MODEL_ROUTER_TRACE_CONTENT_MAX_BYTES", "RUNNER_TRACE_CONTENT_MAX_BYTES"}
    assert Telemetry(trace_content=True).variables().keys() == names
    assert Telemetry().variables() == {}


@pytest.mark.parametrize("receiver", ["4317", "http://127.0.0.1:4317", "127.0.0.1:", ":4317", "tempo:99999"])
def test_receiver_of_telemetry_is_an_address(app, tmp_path, receiver):
    ended = CliRunner().invoke(app, ["up", "--data", str(tmp_path), "--otlp", receiver])
    assert ended.exit_code == 2
    assert "HOST:PORT" in ended.output
