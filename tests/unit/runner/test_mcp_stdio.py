"""An MCP server's process: it starts as requested and ends with its runner."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from spawnmesh_runner.clients.mcp.stderr_tail import StderrTail
from spawnmesh_runner.clients.mcp.stdio import open_stdio

from tests.support.runner.mcp_fixtures import is_alive
from tests.support.runner.sandboxes import bare
from tests.support.waiting import eventually

_HOLD = """
import asyncio, sys
from pathlib import Path
from spawnmesh_runner.clients.mcp.stderr_tail import StderrTail
from spawnmesh_runner.clients.mcp.stdio import open_stdio
from tests.support.runner.sandboxes import bare

async def main():
    here = Path(sys.argv[1])
    script = f"trap '' TERM HUP; echo $$ > {here}/pid; while :; do sleep 1; done"
    async with open_stdio("sh", ("-c", script), {}, here, here / "home", StderrTail(), lambda: None, start_with=bare):
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def pid_in(file: Path) -> int:
    """Return the process id that the file gets."""
    return int(await eventually(lambda: file.exists() and file.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
async def test_a_server_is_killed_with_its_runner(tmp_path: Path) -> None:
    runner = await asyncio.create_subprocess_exec(sys.executable, "-c", _HOLD, str(tmp_path))
    try:
        pid = await pid_in(tmp_path / "pid")
        assert os.getpgid(pid) == pid, "it has a group of its own"
        assert is_alive(pid)
    finally:
        runner.kill()
        await runner.wait()
    await eventually(lambda: not is_alive(pid))


async def test_a_missing_command_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with open_stdio(
            "no-such-command",
            (),
            {},
            tmp_path,
            tmp_path / "home",
            StderrTail(),
            lambda: None,
            start_with=bare,
        ):
            raise AssertionError("it was started")
    with pytest.raises(FileNotFoundError):
        async with open_stdio(
            "sh",
            (),
            {"PATH": "/nowhere"},
            tmp_path,
            tmp_path / "home",
            StderrTail(),
            lambda: None,
            start_with=bare,
        ):
            raise AssertionError("it was found where it was not looked for")


async def test_no_program_of_the_workspace_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "planted.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    silent = asyncio.Event()
    args = ("-c", f"import planted; print({str(tmp_path)!r})")
    async with open_stdio(
        sys.executable, args, {}, workspace, workspace / "home", StderrTail(), silent.set, start_with=bare
    ):
        await asyncio.wait_for(silent.wait(), 60)
    assert not (tmp_path / "run").exists()
    monkeypatch.chdir(workspace)
    (workspace / "tool").write_text(f"#!/bin/sh\ntouch {tmp_path / 'run'}\n")
    (workspace / "tool").chmod(0o755)
    with pytest.raises(FileNotFoundError):
        async with open_stdio(
            "tool",
            (),
            {"PATH": "."},
            workspace,
            workspace / "home",
            StderrTail(),
            silent.set,
            start_with=bare,
        ):
            raise AssertionError("it was started")


async def test_home_is_not_made_through_a_symlink_of_a_server(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    (workspace / ".mcp").symlink_to(outside)
    home = workspace / ".mcp" / "weather"
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        async with open_stdio("sh", (), {}, workspace, home, StderrTail(), lambda: None, start_with=bare):
            raise AssertionError("it was started")
    assert list(outside.iterdir()) == []


async def test_an_error_of_the_block_ends_the_command_and_propagates(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; exec sleep 600"

    async def fail() -> None:
        async with open_stdio(
            "sh", ("-c", script), {}, tmp_path, tmp_path / "home", StderrTail(), lambda: None, start_with=bare
        ):
            await pid_in(tmp_path / "pid")
            raise ValueError("of the block")

    with pytest.raises(ExceptionGroup) as raised:
        await fail()
    assert [str(error) for error in raised.value.exceptions] == ["of the block"]
    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_more_cancellations_wait_for_the_commands_end(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"trap '' TERM; echo $$ > {pid_file}; while :; do sleep 1; done"

    is_leaving = asyncio.Event()

    async def hold() -> None:
        async with open_stdio(
            "sh", ("-c", script), {}, tmp_path, tmp_path / "home", StderrTail(), lambda: None, start_with=bare
        ):
            try:
                await asyncio.sleep(600)
            finally:
                is_leaving.set()

    holding = asyncio.create_task(hold())
    pid = await pid_in(pid_file)
    holding.cancel()
    await is_leaving.wait()
    for _ in range(20):  # At each step of the way out.
        holding.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([holding])
    assert holding.cancelled()
    assert not is_alive(pid)
