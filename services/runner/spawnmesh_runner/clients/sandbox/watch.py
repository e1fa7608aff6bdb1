"""The watch over a program: it looks at what the program uses and says when that is too much.

The kernel bounds each process, and a cgroup all of them together. Without a cgroup nothing but a
look from time to time bounds the memory of all processes, and nothing else bounds a workspace.
"""

import asyncio
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_runner.clients.sandbox.disk import Unreadable, directory_bytes
from spawnmesh_runner.clients.sandbox.memory import held_by
from spawnmesh_runner.clients.sandbox.processes import ProcessTable
from spawnmesh_runner.clients.threads import finish_in_thread

_PAUSE_SECONDS = 0.5
_PAUSE_SHARE = 9  # A look that takes long, as at many files, is taken a tenth of the time.


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a program, with all its processes."""

    memory_bytes: int | None
    """None leaves them to a cgroup."""
    workspace: Path
    workspace_bytes: int


async def wait_for_excess(pid: int, bounds: Bounds, processes: ProcessTable) -> str:
    """Return what is above its bound, once something is. `pid` is the first process."""
    while True:
        start = monotonic_seconds()
        if excess := await finish_in_thread(partial(_excess, pid, bounds, processes)):
            return excess
        await asyncio.sleep(max(_PAUSE_SECONDS, _PAUSE_SHARE * (monotonic_seconds() - start)))


async def workspace_excess(workspace: Path, workspace_bytes: int) -> str:
    """Return what is wrong if the workspace is above its bound, or nothing."""
    return await finish_in_thread(partial(_workspace_excess, workspace, workspace_bytes, 0))


def memory_excess(memory_bytes: int) -> str:
    """Return the words for memory above its bound."""
    return f"its processes held more than {memory_bytes} bytes of memory"


def _excess(pid: int, bounds: Bounds, processes: ProcessTable) -> str:
    try:
        disk = bounds.workspace.stat().st_dev
    except FileNotFoundError:
        return ""
    memory = sys.maxsize if bounds.memory_bytes is None else bounds.memory_bytes
    held = held_by(processes.below(pid), disk, memory)
    if held.memory_bytes() > memory:
        return memory_excess(memory)
    return _workspace_excess(bounds.workspace, bounds.workspace_bytes, held.deleted_bytes(disk))


def _workspace_excess(workspace: Path, workspace_bytes: int, deleted_bytes: int) -> str:
    left = workspace_bytes - deleted_bytes
    try:
        if left < 0 or directory_bytes(workspace, left) > left:
            return f"the workspace of the run had more than {workspace_bytes} bytes"
    except Unreadable as problem:
        return f"the size of the run's workspace cannot be found out: {problem}"
    return ""
