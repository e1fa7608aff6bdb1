"""Opens directories below a descriptor, one component at a time and through no symlink.

The kernel resolves a path in one step. An attacker who can rename a directory of the path can
redirect it. Here each component is opened relative to the descriptor of the previous one, so that
a later rename has no effect.
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
"""Opens a directory by its name below a descriptor. Raises OSError."""


def components(relative: str) -> tuple[str, ...]:
    """Return the components of a path below a root, without `.` and empty components.

    The root itself has no components. Raises MaterializeError INVALID_PATH for an absolute path, a
    `..`, a NUL, or text that cannot be encoded as a file name.
    """
    parts = tuple(part for part in relative.split("/") if part not in ("", "."))
    if relative.startswith("/") or ".." in parts or "\0" in relative or not _is_encodable(relative):
        raise MaterializeError(MaterializeReason.INVALID_PATH)
    return parts


def open_directory_at(parent_fd: int, name: str) -> int:
    """Open the directory `name`. Raises OSError, which is ELOOP if `name` is a symlink."""
    return _open_at(parent_fd, name, os.O_RDONLY)


def make_directory_at(parent_fd: int, name: str) -> int:
    """Create the directory `name` with mode 0700 under any umask, and open it. Raises OSError."""
    os.mkdir(name, DIRECTORY_MODE, dir_fd=parent_fd)
    try:
        return open_private_directory_at(parent_fd, name)
    except OSError:
        with suppress(OSError):
            os.rmdir(name, dir_fd=parent_fd)
        raise


def open_or_make_directory_at(parent_fd: int, name: str) -> int:
    """Open the directory `name`. Create it with mode 0700 if it is missing. Raises OSError."""
    try:
        return make_directory_at(parent_fd, name)
    except FileExistsError:
        return open_directory_at(parent_fd, name)


def open_private_directory_at(parent_fd: int, name: str) -> int:
    """Open a directory that this library manages, after setting its mode to 0700.

    Raises OSError.
    """
    # O_PATH works without the right to read the directory. chmod reaches it by its entry in /proc.
    fd = _open_at(parent_fd, name, os.O_PATH)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) != DIRECTORY_MODE:
            os.chmod(f"/proc/self/fd/{fd}", DIRECTORY_MODE)
        return os.open(".", os.O_RDONLY | _DIRECTORY_FLAGS, dir_fd=fd)
    finally:
        os.close(fd)


def open_or_make_private_directory_at(parent_fd: int, name: str) -> int:
    """Open a managed directory with mode 0700. Create it if it is missing. Raises OSError."""
    try:
        return make_directory_at(parent_fd, name)
    except FileExistsError:
        return open_private_directory_at(parent_fd, name)


def is_kind_at(parent_fd: int | None, name: str, is_kind: Callable[[int], bool]) -> bool:
    """Return whether `name` is of a kind such as `stat.S_ISDIR`; False if it is missing.

    A symlink is not followed.
    """
    try:
        return is_kind(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


@contextmanager
def opened_below(root: Path, parts: Sequence[str], step: Step = open_directory_at) -> Iterator[int]:
    """Open the directory `parts` below `root`, one component at a time. The path of `root` is
    trusted.

    Raises MaterializeError. Its `depth` is the number of the component, from 1, and 0 for the root.
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
        # The kernel returns the same error for a symlink and a file. The caller needs the
        # difference.
        if is_kind_at(parent_fd, name, stat.S_ISLNK):
            raise OSError(errno.ELOOP, "symlink") from None
        raise


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True
