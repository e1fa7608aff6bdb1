"""Private directories for runs: made, guarded while in use, and removed whatever is in them."""

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

from spawnmesh_runner.in_thread import finish_in_thread

_MODE = 0o700
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@asynccontextmanager
async def private_workspace(root: Path, name: str) -> AsyncIterator[Path]:
    """The empty directory `<root>/<name>`, mode 0700, locked as in use, and removed with all its contents at the end.

    Raises MaterializeError when it cannot be made.
    """
    lock_fds: list[int] = []
    try:
        # Whoever is cancelled meanwhile gets no result of the thread, and has a workspace to remove all the same.
        await finish_in_thread(lambda: lock_fds.append(_make(root, name)))
        yield root / name
    finally:
        for lock_fd in lock_fds:
            await finish_in_thread(partial(_remove, root, name, lock_fd))


async def remove_abandoned(root: Path) -> int:
    """Removes the workspaces of runners that were killed; those that a living process of this machine has locked stay. Gives their number."""
    return await asyncio.to_thread(_remove_abandoned, root)


def _make(root: Path, name: str) -> int:
    with os_errors_typed():
        root.mkdir(mode=_MODE, parents=True, exist_ok=True)
        _erase(root, name)
        while True:  # a sweep of another process may get hold of it in the moment before it is locked
            (root / name).mkdir(mode=_MODE, exist_ok=True)
            if (lock_fd := _lock(root / name)) is not None:
                os.fchmod(lock_fd, _MODE)
                return lock_fd


def _lock(directory: Path) -> int | None:
    """A descriptor that holds the directory's lock; None if another process has it, or removed the directory meanwhile."""
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
        os.close(lock_fd)  # The last hold on what is erased: it is now that the disk is waited for.


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
