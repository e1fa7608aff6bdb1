"""An MCP server's process: it starts as requested and ends with its runner."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from spawnmesh_runner.clients.mcp.stdio import open_stdio

_HOLD = """
import asyncio, sys
from pathlib import Path
from spawnmesh_runner.clients.mcp.stdio import open_stdio

async def main():
    here = Path(sys.argv[1])
    script = f"trap '' TERM HUP; echo $$ > {here}/pid; while :; do sleep 1; done"
    async with open_stdio("sh", ("-c", script), {}, here, here / "home", lambda: None):
        await asyncio.sleep(600)

asyncio.run(main())
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(holds: object, *, seconds: float = 20.0) -> None:
    assert callable(holds)
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, "it never came to hold"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_a_server_is_killed_with_its_runner(tmp_path: Path) -> None:
    runner = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)])
    try:
        pid_file = tmp_path / "pid"
        until(lambda: pid_file.exists() and pid_file.read_text())
        pid = int(pid_file.read_text())
        assert os.getpgid(pid) == pid, "it has a group of its own"
        assert is_alive(pid)
    finally:
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    until(lambda: not is_alive(pid))


async def test_a_missing_command_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with open_stdio("no-such-command", (), {}, tmp_path, tmp_path / "home", lambda: None):
            raise AssertionError("it was started")
    with pytest.raises(FileNotFoundError):
        async with open_stdio("sh", (), {"PATH": "/nowhere"}, tmp_path, tmp_path / "home", lambda: None):
            raise AssertionError("it was found where it was not looked for")


async def test_no_program_of_the_workspace_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "planted.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    silent = asyncio.Event()
    args = ("-c", f"import planted; print({str(tmp_path)!r})")
    async with open_stdio(sys.executable, args, {}, workspace, tmp_path / "home", silent.set):
        await asyncio.wait_for(silent.wait(), 20)
    assert not (tmp_path / "run").exists()
    monkeypatch.chdir(workspace)
    (workspace / "tool").write_text(f"#!/bin/sh\ntouch {tmp_path / 'run'}\n")
    (workspace / "tool").chmod(0o755)
    with pytest.raises(FileNotFoundError):
        async with open_stdio("tool", (), {"PATH": "."}, workspace, tmp_path / "home", silent.set):
            raise AssertionError("it was started")


async def test_an_error_of_the_block_ends_the_command_and_propagates(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; exec sleep 600"

    async def fail() -> None:
        async with open_stdio("sh", ("-c", script), {}, tmp_path, tmp_path / "home", lambda: None):
            until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
            raise ValueError("of the block")

    with pytest.raises(ExceptionGroup) as raised:
        await fail()
    assert [str(error) for error in raised.value.exceptions] == ["of the block"]
    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_a_second_cancellation_waits_for_the_commands_end(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"trap '' TERM; echo $$ > {pid_file}; while :; do sleep 1; done"

    async def hold() -> None:
        async with open_stdio("sh", ("-c", script), {}, tmp_path, tmp_path / "home", lambda: None):
            await asyncio.sleep(600)

    holding = asyncio.create_task(hold())
    async with asyncio.timeout(20):
        while not (pid_file.exists() and pid_file.read_text()):
            await asyncio.sleep(0.01)
    for _ in range(3):
        holding.cancel()
        await asyncio.sleep(0.2)
    await asyncio.wait([holding])
    assert holding.cancelled()
    assert not is_alive(int(pid_file.read_text()))
