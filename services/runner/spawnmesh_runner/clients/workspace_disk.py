"""The disk of the workspaces: whether it has room for another run."""

import asyncio
import errno
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

_MIN_FREE_INODES = 100
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(slots=True)
class WorkspaceDisk:
    """The disk that `root` is on. It has room if `min_free_bytes` can be written there.

    After `met_full` the free space that the disk reports is not believed, because a quota may be
    smaller: a check then reserves the bytes and gives them back.
    """

    root: Path
    min_free_bytes: int
    _is_suspect: bool = False

    def met_full(self) -> None:
        """Note that a write failed because the disk is full."""
        self._is_suspect = True

    def free_bytes(self) -> int:
        """Return the free space that the disk reports. May block."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    async def has_room(self) -> bool:
        """Return whether another run has room."""
        return await asyncio.to_thread(self._has_room)

    def _has_room(self) -> bool:
        found = os.statvfs(self.root)
        if found.f_bavail * found.f_frsize < self.min_free_bytes:
            return False
        # A file system without a fixed number of inodes reports none at all.
        if found.f_files and found.f_favail < _MIN_FREE_INODES:
            return False
        if self._is_suspect and not self._can_reserve():
            return False
        self._is_suspect = False
        return True

    def _can_reserve(self) -> bool:
        try:
            with tempfile.TemporaryFile(dir=self.root) as file:
                os.posix_fallocate(file.fileno(), 0, max(self.min_free_bytes, 1))
        except OSError as error:
            if error.errno in _FULL:
                return False
            raise
        return True
