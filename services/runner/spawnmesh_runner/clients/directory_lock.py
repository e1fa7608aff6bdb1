"""Locks of directories, by which the processes of a machine know what another one uses.

The kernel gives up the locks of a process that ends, also of one that is killed.
"""

import errno
import fcntl
import os
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def lock_directory(directory: Path) -> int | None:
    """Return a descriptor that holds the directory's lock.

    Return None if another process locked or removed the directory.
    """
    try:
        fd = os.open(directory, _FLAGS)
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
