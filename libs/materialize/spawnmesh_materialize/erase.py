"""Deletes a tree that an attacker may have built, and may be changing at the same time."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from spawnmesh_materialize.descend import is_kind_at, open_private_directory_at

# Each pass removes one level of the tree. The bound stops an attacker who keeps adding levels.
_MAX_PASSES = 100_000
_MAX_ATTEMPTS = 10
# Errors for an entry that was moved, replaced or filled since it was inspected: inspect it again.
_CHANGED = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY})


def erase_at(parent_fd: int, name: str) -> None:
    """Delete `name` and everything below it. A symlink is deleted and not followed.

    A missing entry is no error. Concurrent calls are safe, even if entries are moved meanwhile.
    Raises OSError.
    """
    for _ in range(_MAX_ATTEMPTS):
        with _ignore_concurrent_change():
            _erase_once(parent_fd, name)
        try:
            os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        except FileNotFoundError:
            return
    raise OSError(errno.ENOTEMPTY, "entries are added while it is deleted")


def _erase_once(parent_fd: int, name: str) -> None:
    if is_kind_at(parent_fd, name, stat.S_ISDIR):
        fd = open_private_directory_at(parent_fd, name)
        try:
            empty_directory(fd)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=parent_fd)
    else:
        os.unlink(name, dir_fd=parent_fd)


def empty_directory(top_fd: int) -> None:
    """Delete everything below a directory, even if the directory is moved. Raises OSError.

    Subdirectories are moved up to the top, so that depth costs neither stack nor descriptors.
    """
    for _ in range(_MAX_PASSES):
        names = os.listdir(top_fd)
        if not names:
            return
        for name in names:
            with _ignore_concurrent_change():
                _erase_one_level(top_fd, name)


def _erase_one_level(top_fd: int, name: str) -> None:
    """Delete a file, or a directory whose subdirectories are moved up beside it first."""
    if not is_kind_at(top_fd, name, stat.S_ISDIR):
        os.unlink(name, dir_fd=top_fd)
        return
    fd = open_private_directory_at(top_fd, name)
    try:
        for entry in os.listdir(fd):
            with _ignore_concurrent_change():
                if is_kind_at(fd, entry, stat.S_ISDIR):
                    # Moving a directory rewrites its "..", which needs write permission on it.
                    os.close(open_private_directory_at(fd, entry))
                    os.rename(entry, secrets.token_hex(16), src_dir_fd=fd, dst_dir_fd=top_fd)
                else:
                    os.unlink(entry, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=top_fd)


@contextmanager
def _ignore_concurrent_change() -> Iterator[None]:
    """End the block without an error if the entry changed meanwhile."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CHANGED:
            raise
