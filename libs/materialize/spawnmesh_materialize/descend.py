"""Walking down from a directory descriptor, one component at a time and through no symlink.

A path is looked up by the kernel in one go, and whoever can rename a directory on the way can lead it elsewhere. Here
each component is opened relative to the descriptor of the one before, so the way down is fixed once it has been walked.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from spawnmesh_materialize.errors import MaterializeError, MaterializeReason, os_errors_typed

DIRECTORY_MODE = 0o700
_DIRECTORY_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Step = Callable[[int, str], int]
"""Opens the directory of a name below a descriptor, or raises OSError."""


def components(relative: str) -> tuple[str, ...]:
    """The components of a path below a root; `.` and doubled slashes vanish, so the root itself has none.

    Raises MaterializeError INVALID_PATH for an absolute path, `..` anywhere, a NUL, or text that is no file name.
    """
    parts = tuple(part for part in relative.split("/") if part not in ("", "."))
    if relative.startswith("/") or ".." in parts or "\0" in relative or not _is_encodable(relative):
        raise MaterializeError(MaterializeReason.INVALID_PATH)
    return parts


def open_directory_at(parent_fd: int, name: str) -> int:
    """A descriptor of the directory `name`. Raises OSError, ELOOP where `name` is a symlink."""
    return _open_at(parent_fd, name, os.O_RDONLY)


def make_directory_at(parent_fd: int, name: str) -> int:
    """Makes the directory `name`, mode 0700 under any umask, and opens it. Raises OSError."""
    os.mkdir(name, DIRECTORY_MODE, dir_fd=parent_fd)
    try:
        return open_private_directory_at(parent_fd, name)
    except OSError:
        with suppress(OSError):
            os.rmdir(name, dir_fd=parent_fd)
        raise


def open_or_make_directory_at(parent_fd: int, name: str) -> int:
    """Opens the directory `name`, made with mode 0700 if it is missing. Raises OSError."""
    try:
        return make_directory_at(parent_fd, name)
    except FileExistsError:
        return open_directory_at(parent_fd, name)


def open_private_directory_at(parent_fd: int, name: str) -> int:
    """Opens a directory of ours after giving it mode 0700, should it have another one. Raises OSError."""
    # An O_PATH descriptor can be had of a directory that may not be read, and chmod takes it by its entry in /proc.
    fd = _open_at(parent_fd, name, os.O_PATH)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) != DIRECTORY_MODE:
            os.chmod(f"/proc/self/fd/{fd}", DIRECTORY_MODE)
        return os.open(".", os.O_RDONLY | _DIRECTORY_FLAGS, dir_fd=fd)
    finally:
        os.close(fd)


def open_or_make_private_directory_at(parent_fd: int, name: str) -> int:
    """Opens a directory of ours with mode 0700, made if it is missing. Raises OSError."""
    try:
        return make_directory_at(parent_fd, name)
    except FileExistsError:
        return open_private_directory_at(parent_fd, name)


def is_kind_at(parent_fd: int | None, name: str, is_kind: Callable[[int], bool]) -> bool:
    """Whether `name` itself, not what it may point at, is of a kind such as `stat.S_ISDIR`; False if it is missing."""
    try:
        return is_kind(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


@contextmanager
def opened_below(root: Path, parts: Sequence[str], step: Step = open_directory_at) -> Iterator[int]:
    """A descriptor of the directory `parts` below `root`, opened step by step; what lies above `root` is trusted.

    Raises MaterializeError; its `depth` counts components from 1, the root being 0.
    """
    with os_errors_typed(depth=0):
        fd = _open_at(None, os.fspath(root), os.O_RDONLY)
    try:
        for depth, part in enumerate(parts, start=1):
            with os_errors_typed(depth=depth):
                below = step(fd, part)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _open_at(parent_fd: int | None, name: str, access: int) -> int:
    try:
        return os.open(name, access | _DIRECTORY_FLAGS, dir_fd=parent_fd)
    except NotADirectoryError:
        # The kernel says the same of a symlink and of a file; the caller should hear which it was.
        if is_kind_at(parent_fd, name, stat.S_ISLNK):
            raise OSError(errno.ELOOP, "symlink") from None
        raise


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True
