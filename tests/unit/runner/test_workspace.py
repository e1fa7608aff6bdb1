"""A run's directory is private, locked while in use, and removed at the end."""

import asyncio
import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest
from spawnmesh_materialize import MaterializeError
from spawnmesh_runner.clients import workspace
from spawnmesh_runner.clients.threads import finish_in_thread
from spawnmesh_runner.clients.workspace import private_workspace, remove_abandoned_workspaces
from spawnmesh_runner.loop import workspace_sweep

from tests.support.open_paths import open_paths_below
from tests.support.waiting import eventually


async def test_a_workspace_is_private_and_removed_at_the_end(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("kept")
    umask = os.umask(0)
    try:
        async with private_workspace(tmp_path / "root", "ses-1") as workspace:
            assert stat.S_IMODE(workspace.stat().st_mode) == 0o700
            assert stat.S_IMODE(workspace.parent.stat().st_mode) == 0o700
            (workspace / "dir").mkdir()
            (workspace / "dir" / "link").symlink_to(tmp_path)
            (workspace / "dir").chmod(0)
    finally:
        os.umask(umask)
    assert os.listdir(tmp_path / "root") == []
    assert outside.read_text() == "kept"


async def test_erasing_a_workspace_does_not_block_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may block when the last descriptor of an erased file is closed."""
    root = tmp_path.resolve()
    closed: dict[
        int, tuple[bool, bool]
    ] = {}  # For each closed descriptor: on the loop's thread, and after the workspace was removed.
    close = os.close

    def noted(fd: int) -> None:
        on_loop = threading.current_thread() is threading.main_thread()
        closed.setdefault(fd, (on_loop, not (root / "ses-1").exists()))
        close(fd)

    monkeypatch.setattr(os, "close", noted)
    async with private_workspace(root, "ses-1") as workspace:
        open_fds = [int(name) for name in os.listdir("/proc/self/fd")]
        (held_fd,) = (fd for fd in open_fds if os.path.realpath(f"/proc/self/fd/{fd}") == str(workspace))
        closed.clear()
    assert closed[held_fd] == (False, True)


async def test_a_workspace_is_removed_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        async with private_workspace(tmp_path, "ses-1"):
            raise RuntimeError
    assert os.listdir(tmp_path) == []


async def test_a_workspace_starts_empty_and_replaces_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f").write_text("kept")
    (tmp_path / "ses-1").symlink_to(tmp_path / "elsewhere")
    async with private_workspace(tmp_path, "ses-1") as workspace:
        assert not workspace.is_symlink()
        assert os.listdir(workspace) == []
    assert (tmp_path / "elsewhere" / "f").read_text() == "kept"


async def test_abandoned_workspaces_are_removed_and_used_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "abandoned" / "deep").mkdir(parents=True)
    (tmp_path / "held").mkdir()
    held_fd = os.open(tmp_path / "held", os.O_RDONLY)
    try:
        fcntl.flock(
            held_fd, fcntl.LOCK_EX
        )  # The lock belongs to the open file: to a sweep, this is another process.
        async with private_workspace(tmp_path, "ours") as workspace:
            assert await remove_abandoned_workspaces(tmp_path) == 1
            assert workspace.is_dir()
    finally:
        os.close(held_fd)
    assert os.listdir(tmp_path) == ["held"]


async def test_a_workspace_whose_creation_is_cancelled_is_removed_and_unlocked(tmp_path: Path) -> None:
    async def use() -> None:
        async with private_workspace(tmp_path / "root", "ses-1"):
            raise AssertionError("it was cancelled before")

    using = asyncio.create_task(use())
    await asyncio.sleep(0)  # The thread has its work, and the task waits for it.
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert os.listdir(tmp_path / "root") == []
    assert open_paths_below(tmp_path) == []


async def test_file_work_finishes_despite_cancellations() -> None:
    go_on, done = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait(600)
        done.set()

    working = asyncio.create_task(finish_in_thread(work))
    for _ in range(3):
        await asyncio.sleep(0)
        working.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert done.is_set()


async def test_a_directory_that_another_process_uses_is_not_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "_LOCK_SECONDS", 0.05)
    (tmp_path / "ses-1").mkdir()
    (tmp_path / "ses-1" / "f").write_text("kept")
    held_fd = os.open(tmp_path / "ses-1", os.O_RDONLY)
    try:
        fcntl.flock(held_fd, fcntl.LOCK_EX)
        with pytest.raises(MaterializeError):
            async with private_workspace(tmp_path, "ses-1"):
                raise AssertionError("it is in use")
    finally:
        os.close(held_fd)
    assert (tmp_path / "ses-1" / "f").read_text() == "kept"


async def test_what_a_killed_runner_left_is_removed_while_others_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_sweep, "SWEEP_SECONDS", 0.01)
    root, cgroups = tmp_path / "work", tmp_path / "cgroups"
    cgroups.mkdir()
    sweeping = asyncio.create_task(workspace_sweep.sweep_workspaces_forever(root, cgroups))
    try:
        async with private_workspace(root, "ours") as ours:
            (root / "abandoned").mkdir()
            (root / "abandoned" / "secret.txt").write_text("plaintext")
            (cgroups / "mcp-abandoned").mkdir()
            await eventually(lambda: not (root / "abandoned").exists())
            await eventually(lambda: not (cgroups / "mcp-abandoned").exists())
            assert ours.is_dir()
    finally:
        sweeping.cancel()
