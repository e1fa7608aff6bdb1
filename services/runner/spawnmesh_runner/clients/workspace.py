"""Private directories for runs: created, locked while in use, and removed with their contents."""

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_materialize.erase import erase_at
from spawnmesh_materialize.errors import os_errors_typed

from spawnmesh_runner.clients.directory_lock import lock_directory
from spawnmesh_runner.clients.threads import finish_in_thread

_MODE = 0o700
# The name has the epoch of a claim, so only the sweep of another process can hold its lock.
_LOCK_SECONDS = 10.0
_LOCK_PAUSE_SECONDS = 0.01


@asynccontextmanager
async def private_workspace(root: Path, name: str) -> AsyncIterator[Path]:
    """Create and lock the empty directory `<root>/<name>`, mode 0700, and remove it at the end.

    Raises MaterializeError if it cannot be created.
    """
    lock_fds: list[int] = []
    try:
        # A task that is cancelled here gets no result of the thread, but still has to remove the
        # workspace.
        await finish_in_thread(lambda: lock_fds.append(_make(root, name)))
        yield root / name
    finally:
        for lock_fd in lock_fds:
            await finish_in_thread(partial(_remove, root, name, lock_fd))


async def remove_abandoned_workspaces(root: Path) -> int:
    """Remove the workspaces of killed runners and return their number.

    A workspace that a living process of this machine has locked stays.
    """
    return await asyncio.to_thread(_remove_abandoned, root)


def _make(root: Path, name: str) -> int:
    """Create and lock the empty directory.

    An earlier directory of this name is erased, unless another process has locked it.
    """
    with os_errors_typed():
        root.mkdir(mode=_MODE, parents=True, exist_ok=True)
        give_up = monotonic_seconds() + _LOCK_SECONDS
        while True:
            try:
                (root / name).mkdir(mode=_MODE)
            except FileExistsError:
                is_erased = _erase_unused(root, name)
            else:
                # Another process may remove the directory in the moment before it is locked.
                if (lock_fd := lock_directory(root / name)) is not None:
                    os.fchmod(lock_fd, _MODE)
                    return lock_fd
                is_erased = True
            if not is_erased:
                if monotonic_seconds() >= give_up:
                    raise FileExistsError(errno.EEXIST, "another process uses the workspace")
                time.sleep(_LOCK_PAUSE_SECONDS)


def _remove(root: Path, name: str, lock_fd: int) -> None:
    try:
        _erase(root, name)
    finally:
        # This closes the last handle of the erased files, so here the disk may block.
        os.close(lock_fd)


def _erase(root: Path, name: str) -> None:
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os_errors_typed():
            erase_at(root_fd, name)
    finally:
        os.close(root_fd)


def _remove_abandoned(root: Path) -> int:
    root.mkdir(mode=_MODE, parents=True, exist_ok=True)
    removed_count = 0
    for entry in list(os.scandir(root)):
        if entry.is_dir(follow_symlinks=False):
            removed_count += _erase_unused(root, entry.name)
    return removed_count


def _erase_unused(root: Path, name: str) -> bool:
    """Erase the entry, unless it is a directory that another process has locked.

    Return whether it was erased.
    """
    if (root / name).is_symlink() or not (root / name).is_dir():
        _erase(root, name)
        return True
    lock_fd = lock_directory(root / name)
    if lock_fd is None:
        return False
    try:
        _erase(root, name)
    finally:
        os.close(lock_fd)
    return True
