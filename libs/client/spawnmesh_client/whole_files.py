"""Files that come to be as a whole: written beside their place, and put there when they are complete."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


class BeingWritten(OSError):
    """Another process writes the same file now."""


@contextmanager
def written_whole(target: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Open for writing what is to be `target`, mode 0600: that is there once the block has ended, and as it was where the block fails.

    The part lies beside the target under a name that the target decides, so that what a killed process left is removed by the next that writes
    the same file. Raises FileExistsError, before the block and again after it, unless it may overwrite; BeingWritten; and other OSErrors.
    """
    _require_room(target, overwrite=overwrite)
    part = target.with_name(f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}.part")
    while (descriptor := _made(part)) is None:
        _remove_left(part)
    with os.fdopen(descriptor, "wb") as file:
        try:  # Inside: the name has to be gone before the lock is.
            yield file
            file.flush()
            if overwrite:
                part.replace(target)
            else:
                _link(part, target)
        finally:
            with suppress(FileNotFoundError):
                part.unlink()


def _require_room(target: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if target.exists() and not target.is_file():
        raise OSError(f"{target.name} is there and is no file")
    if not overwrite:
        raise FileExistsError(f"{target.name} is there already")


def _link(part: Path, target: Path) -> None:
    """Which, other than a rename, never takes the place of another file."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise FileExistsError(f"{target.name} is there already") from None


def _made(part: Path) -> int | None:
    """A new file of that name, locked; None where one was there, or this one was taken for one that was left."""
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return None
    is_ours = False
    try:
        is_ours = _locked(descriptor, part)
    finally:
        if not is_ours:
            os.close(descriptor)
    return descriptor if is_ours else None


def _remove_left(part: Path) -> None:
    """Removes what no process has locked. It is not written to, since it may be a second name of a whole file. Raises BeingWritten."""
    with suppress(FileNotFoundError):
        descriptor = os.open(part, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if _locked(descriptor, part):
                part.unlink()
        finally:
            os.close(descriptor)


def _locked(descriptor: int, part: Path) -> bool:
    """Whether the open file is locked now and still has that name. Raises BeingWritten where another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.lstat(part))
    except FileNotFoundError:
        return False
    except BlockingIOError:
        raise BeingWritten("another process is writing the same file now") from None
