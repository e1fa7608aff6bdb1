"""Opens files and lists directories by paths that a model chose.

Paths are relative to the workspace's root, with `/` between components. No component may be a
symlink. Only regular files and directories are opened. All functions raise MaterializeError.
"""

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from spawnmesh_materialize.descend import (
    components,
    open_directory_at,
    open_or_make_directory_at,
    opened_below,
)
from spawnmesh_materialize.errors import MaterializeError, MaterializeReason, os_errors_typed

FILE_MODE = 0o600
# Without O_NONBLOCK, opening a pipe would wait for its other end. Regular files ignore it.
_FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """An entry of a directory. A symlink is not followed. `size_bytes` is 0 except for files."""

    name: str
    kind: FileKind
    size_bytes: int


def open_for_reading(root: Path, relative: str) -> BinaryIO:
    """Open the regular file at `relative` for reading.

    A file with several hard links is refused, since another name may lie outside the root.
    """
    return os.fdopen(_open_regular(root, relative, os.O_RDONLY), "rb")


def open_for_writing(root: Path, relative: str, *, create_parents: bool = False) -> BinaryIO:
    """Open the file at `relative` for writing, and empty it.

    A missing file is created with mode 0600 under any umask, missing directories with 0700. A file
    with several hard links is refused, since another name may lie outside the root.
    """
    fd = _open_regular(root, relative, os.O_WRONLY | os.O_CREAT, create_parents=create_parents)
    try:
        with os_errors_typed():
            # O_TRUNC would empty the file before its links were counted.
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return os.fdopen(fd, "wb")


def list_directory(root: Path, relative: str = ".") -> list[DirectoryEntry]:
    """Return the entries of the directory at `relative`, sorted by name.

    Entries that vanish meanwhile are omitted.
    """
    with opened_below(root, components(relative)) as fd, os_errors_typed():
        found = [_entry(fd, name) for name in os.listdir(fd)]
        return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.name)


def _entry(directory_fd: int, name: str) -> DirectoryEntry | None:
    try:
        status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(status.st_mode):
        return DirectoryEntry(name, FileKind.FILE, status.st_size)
    if stat.S_ISDIR(status.st_mode):
        return DirectoryEntry(name, FileKind.DIRECTORY, 0)
    return DirectoryEntry(name, FileKind.SYMLINK if stat.S_ISLNK(status.st_mode) else FileKind.OTHER, 0)


def _open_regular(root: Path, relative: str, flags: int, *, create_parents: bool = False) -> int:
    parts = components(relative)
    if not parts or relative.endswith(("/", "/.")):
        raise MaterializeError(MaterializeReason.NOT_A_FILE)
    step = open_or_make_directory_at if create_parents else open_directory_at
    with opened_below(root, parts[:-1], step) as directory_fd:
        with os_errors_typed(depth=len(parts)):
            fd, is_new = _open_or_create(directory_fd, parts[-1], flags)
        try:
            with os_errors_typed(depth=len(parts)):
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise MaterializeError(MaterializeReason.NOT_A_FILE, depth=len(parts))
                if status.st_nlink > 1:
                    raise MaterializeError(MaterializeReason.UNSAFE_PATH, links=status.st_nlink)
                if is_new:
                    os.fchmod(fd, FILE_MODE)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _open_or_create(directory_fd: int, name: str, flags: int) -> tuple[int, bool]:
    """Return the descriptor, and whether this call created the file and so has to set its mode."""
    if flags & os.O_CREAT:
        try:
            return os.open(name, flags | os.O_EXCL | _FILE_FLAGS, FILE_MODE, dir_fd=directory_fd), True
        except FileExistsError:
            pass
    return os.open(name, flags & ~os.O_CREAT | _FILE_FLAGS, dir_fd=directory_fd), False
