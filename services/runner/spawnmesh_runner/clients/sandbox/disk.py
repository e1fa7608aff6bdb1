"""The space that a directory takes, which a program may be changing at the same time."""

import os
from collections.abc import Callable
from pathlib import Path

ENTRY_BYTES = 4096
"""The bytes that a file or a directory counts beside its content: empty ones fill a disk, too."""
MAX_DEPTH = 64
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Unreadable(Exception):
    """A directory cannot be looked into: it is too deep, or not readable."""


def directory_bytes(root: Path, enough: int, go_on: Callable[[], object] = lambda: None) -> int:
    """Return the bytes that the directory takes, or some number above `enough`. May block.

    Symlinks are not followed, and a file with several names counts once. `go_on` is called at each
    entry, and may raise. Raises Unreadable.
    """
    found = _Walk(enough, go_on)
    try:
        fd = os.open(root, _FLAGS)
    except FileNotFoundError:
        return 0
    try:
        found.add(fd, 0)
    finally:
        os.close(fd)
    return found.total


class _Walk:
    def __init__(self, enough: int, go_on: Callable[[], object]) -> None:
        self.total = 0
        self._enough = enough
        self._go_on = go_on
        self._linked: set[int] = set()

    def add(self, fd: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise Unreadable(f"it has directories in more than {MAX_DEPTH} levels")
        with os.scandir(fd) as entries:
            for entry in entries:
                if self.total > self._enough:
                    return
                self._go_on()
                try:
                    self._add_entry(fd, entry, depth)
                except PermissionError:
                    raise Unreadable("it has a directory that cannot be read") from None
                except OSError:
                    continue  # It was removed or replaced meanwhile.

    def _add_entry(self, fd: int, entry: os.DirEntry[str], depth: int) -> None:
        stat = entry.stat(follow_symlinks=False)
        self.total += ENTRY_BYTES
        if entry.is_dir(follow_symlinks=False):
            below = os.open(entry.name, _FLAGS, dir_fd=fd)
            try:
                self.add(below, depth + 1)
            finally:
                os.close(below)
        elif stat.st_nlink < 2 or stat.st_ino not in self._linked:
            self._linked.add(stat.st_ino)
            self.total += stat.st_blocks * 512
