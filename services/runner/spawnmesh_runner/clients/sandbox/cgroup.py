"""A cgroup for each program, below one that is delegated to the runner: the kernel's own bounds."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import structlog

from spawnmesh_runner.clients.directory_lock import lock_directory

log = structlog.get_logger()

_REMOVE_SECONDS = 2.0
_POLL_SECONDS = 0.05
_PREFIX = "mcp-"


@asynccontextmanager
async def own_cgroup(parent: Path | None, memory_bytes: int, processes: int) -> AsyncIterator[Path | None]:
    """Create and lock a cgroup with these bounds and the least weight for processors, and end its
    processes and remove it at the end.

    If it runs out of memory, the kernel ends all of its processes. Yields None without a parent.
    Raises OSError if the parent does not let this process bound memory and processes below it.
    """
    if parent is None:
        yield None
        return
    cgroup, lock_fd = _create(parent)
    try:
        (cgroup / "memory.max").write_text(str(memory_bytes))
        with suppress(OSError):  # A kernel without swap has no such file.
            (cgroup / "memory.swap.max").write_text("0")
        (cgroup / "memory.oom.group").write_text("1")
        (cgroup / "pids.max").write_text(str(processes))
        with suppress(OSError):  # Without the controller, the niceness of the processes counts alone.
            (cgroup / "cpu.weight").write_text("1")
        yield cgroup
    finally:
        try:
            await _remove(cgroup)
        finally:
            os.close(lock_fd)


async def remove_abandoned_cgroups(parent: Path | None) -> int:
    """Remove the empty cgroups of killed runners and return their number.

    A cgroup that a living process of this machine has locked stays, and so does one with processes,
    which the next call removes when they have ended.
    """
    return 0 if parent is None else await asyncio.to_thread(_remove_abandoned, parent)


def _remove_abandoned(parent: Path) -> int:
    return sum(_is_abandoned_removed(cgroup) for cgroup in parent.glob(f"{_PREFIX}*"))


def _is_abandoned_removed(cgroup: Path) -> bool:
    try:
        lock_fd = lock_directory(cgroup)
    except OSError:  # It belongs to another account.
        return False
    if lock_fd is None:
        return False
    try:
        return _is_removed(cgroup)
    finally:
        os.close(lock_fd)


def _create(parent: Path) -> tuple[Path, int]:
    """Return a new cgroup, and a descriptor that holds its lock.

    Another process may remove the cgroup in the moment before it is locked: then create another.
    """
    while True:
        cgroup = parent / f"{_PREFIX}{uuid4().hex}"
        cgroup.mkdir()
        if (lock_fd := lock_directory(cgroup)) is not None:
            return cgroup, lock_fd


def ran_out_of_memory(cgroup: Path) -> bool:
    """Return whether the kernel ended a process for the cgroup's bound of memory."""
    try:
        events = dict(line.split() for line in (cgroup / "memory.events").read_text().splitlines())
    except (OSError, ValueError):
        return False
    return events.get("oom_kill", "0") != "0"


async def _remove(cgroup: Path) -> None:
    with suppress(OSError):
        (cgroup / "cgroup.kill").write_text("1")
    try:
        async with asyncio.timeout(_REMOVE_SECONDS):
            while not _is_removed(cgroup):  # noqa: ASYNC110 - nothing signals the end
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        log.warning("mcp_cgroup_not_removed", cgroup=cgroup.name)


def _is_removed(cgroup: Path) -> bool:
    """Try to remove it: it is busy until its last process has ended."""
    try:
        cgroup.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
