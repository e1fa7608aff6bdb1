"""Errors of work on a workspace's files."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class MaterializeReason(StrEnum):
    """Stable identifiers of errors."""

    INVALID_SET_ID = "INVALID_SET_ID"
    INVALID_NAME = "INVALID_NAME"
    INVALID_PATH = "INVALID_PATH"
    UNSAFE_PATH = "UNSAFE_PATH"
    NOT_FOUND = "NOT_FOUND"
    NOT_A_FILE = "NOT_A_FILE"
    NOT_A_DIRECTORY = "NOT_A_DIRECTORY"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    SIZE_MISMATCH = "SIZE_MISMATCH"
    HASH_MISMATCH = "HASH_MISMATCH"
    DIFFERENT_SET = "DIFFERENT_SET"
    DISK_FULL = "DISK_FULL"
    FILE_TOO_LARGE = "FILE_TOO_LARGE"
    NO_PERMISSION = "NO_PERMISSION"
    IO_FAILED = "IO_FAILED"


class MaterializeError(Exception):
    """An error of this library.

    `facts` hold numbers and symbols, never a name, a path of the host or content.
    """

    def __init__(self, reason: MaterializeReason, **facts: str | int) -> None:
        self.reason = reason
        self.facts = facts
        super().__init__(reason, facts)

    def __str__(self) -> str:
        return " ".join([self.reason.value, *(f"{key}={value}" for key, value in self.facts.items())])


_REASON_BY_ERRNO = {
    errno.ENOENT: MaterializeReason.NOT_FOUND,
    errno.ELOOP: MaterializeReason.UNSAFE_PATH,
    errno.ENOTDIR: MaterializeReason.NOT_A_DIRECTORY,
    errno.EISDIR: MaterializeReason.NOT_A_FILE,
    errno.ENXIO: MaterializeReason.NOT_A_FILE,  # A pipe without a reader, or a socket.
    errno.EEXIST: MaterializeReason.ALREADY_EXISTS,
    errno.ENAMETOOLONG: MaterializeReason.INVALID_PATH,
    errno.ENOSPC: MaterializeReason.DISK_FULL,
    errno.EDQUOT: MaterializeReason.DISK_FULL,
    errno.EFBIG: MaterializeReason.FILE_TOO_LARGE,
    errno.EACCES: MaterializeReason.NO_PERMISSION,
    errno.EPERM: MaterializeReason.NO_PERMISSION,
    errno.EROFS: MaterializeReason.NO_PERMISSION,
}


def reason_of(error: OSError) -> MaterializeReason:
    """Return the reason for the errno, or IO_FAILED."""
    return _REASON_BY_ERRNO.get(error.errno or 0, MaterializeReason.IO_FAILED)


@contextmanager
def os_errors_typed(**facts: str | int) -> Iterator[None]:
    """Turn an OSError of the block into a MaterializeError.

    The OSError is not chained, since its text contains paths.
    """
    try:
        yield
    except OSError as error:
        symbol = errno.errorcode.get(error.errno or 0, "UNKNOWN")
        raise MaterializeError(reason_of(error), errno=symbol, **facts) from None
