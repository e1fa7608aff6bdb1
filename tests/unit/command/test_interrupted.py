"""Ctrl-C ends the command silently at any time, and so does a closed output."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

SPAWNMESH = str(Path(sys.executable).with_name("spawnmesh"))
SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # Ignored in what a shell runs in the background.
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            print("loading", flush=True)
            time.sleep(30)
sys.meta_path.insert(0, Slow())
from spawnmesh_command.cli import main
main()
"""


async def test_ctrl_c_while_the_command_is_being_loaded() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SLOW, "sessions", stdout=PIPE, stderr=PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"loading\n"
    child.send_signal(signal.SIGINT)
    _, errors = await child.communicate()
    assert (child.returncode, errors) == (130, b"")


@pytest.mark.parametrize("is_buffered", [True, False])
async def test_an_unwritable_output_is_reported_in_one_line(tmp_path: Path, is_buffered: bool) -> None:
    """The output may be an answer or a refusal."""
    env = {**os.environ, "PYTHONUNBUFFERED": "" if is_buffered else "1"}
    refused = ("--data", str(tmp_path), "sessions")
    for arguments in (("hooks", "--help"), refused, (*refused, "--json")):
        typed = f"{SPAWNMESH} {' '.join(arguments)} > /dev/full"
        child = await asyncio.create_subprocess_shell(typed, stderr=PIPE, env=env)
        _, errors = await child.communicate()
        assert child.returncode == 1, errors
        assert (errors.count(b"\n"), errors.startswith(b"error: ")) == (1, True), errors


async def test_a_closed_output_is_none() -> None:
    closed = f"{SPAWNMESH} hooks --help >&-"
    child = await asyncio.create_subprocess_shell(closed, stderr=PIPE)
    _, errors = await child.communicate()
    assert (child.returncode, errors) == (0, b"")
