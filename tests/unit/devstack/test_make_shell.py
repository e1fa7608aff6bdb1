"""`make shell` leads to the command and its Python, whatever the person's own start file does."""

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_shell_has_the_command_and_its_python_first(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash here")
    other = tmp_path / "other"
    other.mkdir()
    (other / "python").write_text("#!/bin/sh\n")
    (other / "python").chmod(0o755)
    (tmp_path / ".bashrc").write_text(f"PATH={other}:$PATH; MINE=read\n")
    terminal, end = pty.openpty()
    env = {"PATH": os.defpath, "HOME": str(tmp_path), "SHELL": shutil.which("bash") or "", "TERM": "dumb"}
    command = ["make", "--assume-old=.venv/.ready", "shell"]
    shell = subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=end, stdout=end, stderr=end, start_new_session=True
    )
    os.close(end)
    os.write(terminal, b"command -v spawnmesh python; echo mine is $MINE; exit\n")
    printed = b""
    try:
        while piece := os.read(terminal, 65_536):
            printed += piece
    except OSError:  # The shell has ended.
        pass
    assert shell.wait() == 0
    os.close(terminal)
    lines = [line.strip() for line in printed.decode().splitlines()]
    assert f"{ROOT}/.venv/bin/spawnmesh" in lines
    assert f"{ROOT}/.venv/bin/python" in lines
    assert "mine is read" in lines
