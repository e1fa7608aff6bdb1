"""Private directories for runs: created, locked while in use, and removed with their contents."""

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from spawnmesh_materialize.erase import erase_at
from spawnmesh_materialize.errors import os_errors_typed

from spawnmesh_runner.clients.threads import finish_in_thread

_MODE = 0o700
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
    with os_errors_typed():
        root.mkdir(mode=_MODE, parents=True, exist_ok=True)
        _erase(root, name)
        while True:  # Another process may remove the directory in the moment before it is locked.
            (root / name).mkdir(mode=_MODE, exist_ok=True)
            if (lock_fd := _lock(root / name)) is not None:
                os.fchmod(lock_fd, _MODE)
                return lock_fd


def _lock(directory: Path) -> int | None:
    """Return a descriptor that holds the directory's lock.

    Return None if another process locked or removed the directory.
    """
    try:
        fd = os.open(directory, _DIRECTORY_FLAGS)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), directory.lstat()):
            return fd
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.ENOENT):
            os.close(fd)
            raise
    os.close(fd)
    return None


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
        if not entry.is_dir(follow_symlinks=False):
            continue
        with suppress(FileNotFoundError):
            lock_fd = _lock(root / entry.name)
            if lock_fd is None:
                continue
            try:
                _erase(root, entry.name)
                removed_count += 1
            finally:
                os.close(lock_fd)
    return removed_count
