"""The watch over a program: it checks what the program uses and says when that is too much.

The kernel bounds each process, and a cgroup all of them together. Without a cgroup, only a
check from time to time bounds the memory of all processes, and nothing else bounds a workspace. So
a program must not make the checks long or rare: one that takes too long is an excess of its own.
"""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_runner.clients.sandbox.check_time import MAX_CHECK_SECONDS, CheckTime, CheckTooLong
from spawnmesh_runner.clients.sandbox.disk import Unreadable, directory_bytes
from spawnmesh_runner.clients.sandbox.memory import held_by
from spawnmesh_runner.clients.sandbox.processes import ProcessTable
from spawnmesh_runner.clients.threads import finish_in_thread

_MIN_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 2.0
_PAUSE_SHARE = 9  # A check that takes longer than usual, as with many files, is made less often.


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a program, with all its processes."""

    memory_bytes: int | None
    """None leaves them to a cgroup."""
    workspace: Path
    workspace_bytes: int
    check_seconds: float = MAX_CHECK_SECONDS
    """The processor time of a check."""


async def wait_for_excess(pid: int, bounds: Bounds, processes: ProcessTable) -> str:
    """Return what is above its bound, once something is. `pid` is the first process."""
    while True:
        start = monotonic_seconds()
        check = partial(_excess, pid, bounds, processes)
        if excess := await finish_in_thread(partial(_in_time, bounds.check_seconds, check)):
            return excess
        await asyncio.sleep(pause_after(monotonic_seconds() - start))


def pause_after(check_seconds: float) -> float:
    """Return the seconds between a check that took so long and the next one."""
    return min(max(_MIN_PAUSE_SECONDS, _PAUSE_SHARE * check_seconds), _MAX_PAUSE_SECONDS)


async def workspace_excess(workspace: Path, workspace_bytes: int) -> str:
    """Return what is wrong if the workspace is above its bound, or nothing."""
    check = partial(_workspace_excess, workspace, workspace_bytes, 0)
    return await finish_in_thread(partial(_in_time, MAX_CHECK_SECONDS, check))


def memory_excess(memory_bytes: int) -> str:
    """Return the words for memory above its bound."""
    return f"its processes held more than {memory_bytes} bytes of memory"


def _in_time(seconds: float, check: Callable[[CheckTime], str]) -> str:
    """Return what the check found, or that it took too long."""
    try:
        return check(CheckTime(seconds))
    except CheckTooLong as problem:
        return str(problem)


def _excess(pid: int, bounds: Bounds, processes: ProcessTable, check: CheckTime) -> str:
    try:
        disk = bounds.workspace.stat().st_dev
    except FileNotFoundError:
        return ""
    memory = sys.maxsize if bounds.memory_bytes is None else bounds.memory_bytes
    held = held_by(processes.below(pid), disk, memory, check.go_on)
    if held.memory_bytes() > memory:
        return memory_excess(memory)
    return _workspace_excess(bounds.workspace, bounds.workspace_bytes, held.deleted_bytes(disk), check)


def _workspace_excess(workspace: Path, workspace_bytes: int, deleted_bytes: int, check: CheckTime) -> str:
    left = workspace_bytes - deleted_bytes
    try:
        if left < 0 or directory_bytes(workspace, left, check.go_on) > left:
            return f"the workspace of the run had more than {workspace_bytes} bytes"
    except Unreadable as problem:
        return f"the size of the run's workspace cannot be found out: {problem}"
    return ""
