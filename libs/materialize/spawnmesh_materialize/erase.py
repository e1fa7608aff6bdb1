"""Deleting a tree that somebody hostile may have built, and may still be changing."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from spawnmesh_materialize.descend import is_kind_at, open_private_directory_at

# A pass takes one level off a tree. Nobody nests so deep by accident, and one who keeps adding must not hold us for ever.
_MAX_PASSES = 100_000
_MAX_TRIES = 10
# What is said of an entry that was moved, replaced or filled since it was looked at: then it has to be looked at again.
_CHANGED = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY})


def erase_at(parent_fd: int, name: str) -> None:
    """Deletes `name` and all below it; a symlink goes itself, never what it points at. Nothing there is no error.

    Several may do so at once, and somebody may move what is below meanwhile. Raises OSError.
    """
    for _ in range(_MAX_TRIES):
        with _looked_at_again():
            _erase_once(parent_fd, name)
        try:
            os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        except FileNotFoundError:
            return
    raise OSError(errno.ENOTEMPTY, "somebody keeps filling it")


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
    """Deletes all that is below a directory, wherever it may have been moved to. Raises OSError.

    Depth costs neither stack nor descriptors: subdirectories are moved up to the top and taken from there.
    """
    for _ in range(_MAX_PASSES):
        names = os.listdir(top_fd)
        if not names:
            return
        for name in names:
            with _looked_at_again():
                _erase_one_level(top_fd, name)


def _erase_one_level(top_fd: int, name: str) -> None:
    """Deletes a file, or a directory after moving its own subdirectories up beside it."""
    if not is_kind_at(top_fd, name, stat.S_ISDIR):
        os.unlink(name, dir_fd=top_fd)
        return
    fd = open_private_directory_at(top_fd, name)
    try:
        for entry in os.listdir(fd):
            with _looked_at_again():
                if is_kind_at(fd, entry, stat.S_ISDIR):
                    # Moving a directory rewrites its "..", which takes the right to write to it.
                    os.close(open_private_directory_at(fd, entry))
                    os.rename(entry, secrets.token_hex(16), src_dir_fd=fd, dst_dir_fd=top_fd)
                else:
                    os.unlink(entry, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=top_fd)


@contextmanager
def _looked_at_again() -> Iterator[None]:
    """Ends the block at an entry that changed meanwhile."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CHANGED:
            raise
