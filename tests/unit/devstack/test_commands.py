"""The commands as they are typed."""

import pytest
import typer
from spawnmesh_devstack.commands import add_commands
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
    ended = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data"), "--port", "hooks=12345"], env=NO_KEYS)

    assert ended.exit_code == 1
    assert ended.stderr.strip().splitlines()[-1].startswith("error: nothing is called hooks")


NO_KEYS = dict.fromkeys(("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"), "")
