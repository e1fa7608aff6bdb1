"""The use of a program, as the watch over it finds out, and its cgroup."""

import asyncio
import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from spawnmesh_runner.clients.directory_lock import lock_directory
from spawnmesh_runner.clients.sandbox.cgroup import own_cgroup, ran_out_of_memory, remove_abandoned_cgroups
from spawnmesh_runner.clients.sandbox.check_time import CheckTime, CheckTooLong
from spawnmesh_runner.clients.sandbox.command_line import (
    MIB,
    CommandLine,
    Confinement,
    namespaces,
    unsandboxed,
)
from spawnmesh_runner.clients.sandbox.disk import ENTRY_BYTES, MAX_DEPTH, Unreadable, directory_bytes
from spawnmesh_runner.clients.sandbox.memory import held_by
from spawnmesh_runner.clients.sandbox.processes import ProcessTable
from spawnmesh_runner.clients.sandbox.watch import Bounds, pause_after, wait_for_excess

from tests.support.runner.sandboxes import LIMITS, require_sandbox
from tests.support.waiting import eventually

ENOUGH = 1024 * MIB
CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


def test_files_count_with_their_content_and_one_with_two_names_once(tmp_path: Path) -> None:
    assert directory_bytes(tmp_path, ENOUGH) == 0
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(bytes(MIB))
    os.link(tmp_path / "below" / "file", tmp_path / "other name")
    stored = (tmp_path / "other name").stat().st_blocks * 512
    assert stored >= MIB
    assert directory_bytes(tmp_path, ENOUGH) == stored + 3 * ENTRY_BYTES


def test_empty_files_count_too(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    assert directory_bytes(tmp_path, ENOUGH) == 20 * ENTRY_BYTES


def test_a_check_ends_as_soon_as_the_bound_is_passed(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    assert directory_bytes(tmp_path, 5 * ENTRY_BYTES) == 6 * ENTRY_BYTES


def test_links_lead_nowhere(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "large").write_bytes(bytes(MIB))
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside)
    assert directory_bytes(inside, ENOUGH) <= 4 * ENTRY_BYTES  # Long links take a block each.
    assert directory_bytes(inside / "gone", ENOUGH) == 0


def test_directories_that_hide_their_content_are_refused(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*("a" for _ in range(MAX_DEPTH + 1)))
    deep.mkdir(parents=True)
    with pytest.raises(Unreadable, match=f"in more than {MAX_DEPTH} levels"):
        directory_bytes(tmp_path, ENOUGH)


@pytest.mark.parametrize(
    ("check_seconds", "pause_seconds"), [(0.0, 0.5), (0.01, 0.5), (0.1, 0.9), (1.0, 2.0), (15.0, 2.0)]
)
def test_a_long_check_is_made_less_often_but_never_rarely(check_seconds: float, pause_seconds: float) -> None:
    assert pause_after(check_seconds) == pytest.approx(pause_seconds)


async def test_a_check_that_takes_too_long_is_an_excess(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / str(number)).touch()
    bounds = Bounds(None, tmp_path, ENOUGH, check_seconds=0.0005)
    async with asyncio.timeout(60):
        excess = await wait_for_excess(os.getpid(), bounds, ProcessTable())
    assert excess == "the check of its files and memory took more than 0.0005 seconds"


def test_each_mapping_descriptor_and_file_takes_of_the_time_of_a_check(tmp_path: Path) -> None:
    steps = 0

    def go_on() -> None:
        nonlocal steps
        steps += 1

    for number in range(10):
        (tmp_path / str(number)).touch()
    directory_bytes(tmp_path, ENOUGH, go_on)
    assert steps == 10
    steps = 0
    held_by([os.getpid()], tmp_path.stat().st_dev, ENOUGH, go_on)
    before = steps
    with ExitStack() as exits:
        for number in range(10):
            file = exits.enter_context((tmp_path / str(number)).open("wb+"))
            file.truncate(mmap.PAGESIZE)
            exits.enter_context(mmap.mmap(file.fileno(), mmap.PAGESIZE))
        steps = 0
        held_by([os.getpid()], tmp_path.stat().st_dev, ENOUGH, go_on)
    assert steps >= before + 2 * 10


def test_time_of_a_check_ends() -> None:
    with pytest.raises(CheckTooLong):
        CheckTime(0).go_on()
    CheckTime(60).go_on()


async def test_a_process_whose_parent_has_ended_is_found_as_long_as_its_namespace_lives() -> None:
    require_sandbox()
    script = "(setsid sh -c 'sleep 60 & sleep 60' &); exec sleep 60"
    line = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "sh", "-c", script]
    process = await asyncio.create_subprocess_exec(*line)
    try:
        # `unshare`, the process 1 that it starts, and the three that have no other parent.
        await eventually(lambda: len(ProcessTable().below(process.pid)) == 5)
    finally:
        process.kill()
        await process.wait()


async def read(parent: Path, start: CommandLine, workspace: Path) -> dict[str, str]:
    """Return the content of the files of a program's cgroup, which a plain directory stands in for."""
    async with own_cgroup(parent, memory_bytes=64 * MIB, processes=7) as cgroup:
        assert cgroup is not None
        assert cgroup.parent == parent
        place = Confinement(workspace, paths=(), network=False, limits=LIMITS, cgroup=cgroup)
        process = await asyncio.create_subprocess_exec(*start(["/bin/true"], place), env={})
        assert await process.wait() == 0
        found = {file.name: file.read_text() for file in cgroup.iterdir()}
        for file in cgroup.iterdir():
            file.unlink()
    return found


@pytest.mark.parametrize("start", [namespaces, unsandboxed])
async def test_a_program_joins_a_cgroup_with_its_bounds_which_is_removed(
    tmp_path: Path, start: CommandLine
) -> None:
    if start is namespaces:
        require_sandbox()
    parent, workspace = tmp_path / "delegated", tmp_path / "workspace"
    parent.mkdir()
    workspace.mkdir()
    found = await read(parent, start, workspace)
    assert found.pop("cgroup.procs") == "0", "the program itself wrote it"
    assert found == {
        "memory.max": str(64 * MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "7",
        "cpu.weight": "1",
    }


@pytest.mark.parametrize(
    ("events", "outcome"), [("oom 1\noom_kill 3\n", True), ("oom 0\noom_kill 0\n", False), (None, False)]
)
def test_the_kernel_says_whether_it_ended_a_program_for_its_memory(
    tmp_path: Path, events: str | None, outcome: bool
) -> None:
    if events is not None:
        (tmp_path / "memory.events").write_text(events)
    assert ran_out_of_memory(tmp_path) is outcome


async def test_without_a_parent_there_is_no_cgroup(tmp_path: Path) -> None:
    async with own_cgroup(None, memory_bytes=MIB, processes=1) as cgroup:
        assert cgroup is None
    with pytest.raises(FileNotFoundError):
        async with own_cgroup(tmp_path / "missing", memory_bytes=MIB, processes=1):
            raise AssertionError("it was made")


@pytest.fixture
def delegated(tmp_path: Path) -> Iterator[Path]:
    """A cgroup of version 2; a plain directory stands in for it where this account may make none."""
    parent = _new_cgroup() or tmp_path
    yield parent
    if parent is not tmp_path:
        for cgroup in (*filter(Path.is_dir, parent.iterdir()), parent):
            cgroup.rmdir()


def _new_cgroup() -> Path | None:
    for root in CGROUPS:
        cgroup = root / f"spawnmesh-test-{uuid4().hex}"
        with suppress(OSError):
            if (root / "cgroup.controllers").exists():
                cgroup.mkdir()
                return cgroup
    return None


async def test_the_empty_cgroups_of_killed_runners_are_removed_and_no_others(delegated: Path) -> None:
    abandoned, locked, busy, other = (delegated / name for name in ("mcp-1", "mcp-2", "mcp-3", "other"))
    for cgroup in (abandoned, locked, busy, other):
        cgroup.mkdir()
    lock_fd = lock_directory(locked)
    assert lock_fd is not None
    process = await asyncio.create_subprocess_exec("sleep", "60")
    (busy / "cgroup.procs").write_text(str(process.pid))
    try:
        assert await remove_abandoned_cgroups(delegated) == 1
        assert not abandoned.exists()
        assert all(cgroup.exists() for cgroup in (locked, busy, other))
    finally:
        process.kill()
        await process.wait()
        with suppress(OSError):  # In a cgroup the kernel owns it.
            (busy / "cgroup.procs").unlink()
        os.close(lock_fd)
    assert await remove_abandoned_cgroups(delegated) == 2
    assert other.exists()


async def test_the_cgroup_of_a_living_runner_is_not_removed_before_a_process_joins_it(tmp_path: Path) -> None:
    async with own_cgroup(tmp_path, memory_bytes=MIB, processes=1) as cgroup:
        assert cgroup is not None
        for file in cgroup.iterdir():  # A cgroup has no such files: they do not keep it.
            file.unlink()
        assert await remove_abandoned_cgroups(tmp_path) == 0
        assert cgroup.exists()


async def test_without_a_cgroup_nothing_is_removed(tmp_path: Path) -> None:
    assert await remove_abandoned_cgroups(None) == 0
    assert await remove_abandoned_cgroups(tmp_path / "missing") == 0
