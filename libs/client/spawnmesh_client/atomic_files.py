"""Files that appear complete or not at all: written to a temporary file, then moved into place."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


class WriteInProgress(OSError):
    """Another process writes the same file."""


@contextmanager
def atomic_file(target: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Open a temporary file, mode 0600, that becomes `target` when the block ends without an
    error.

    If the block fails, `target` stays as it was. The temporary file lies beside the target under a
    name derived from it, so that the next writer removes what a killed process left. Raises
    FileExistsError, before and after the block, unless it may overwrite; WriteInProgress; and other
    OSErrors.
    """
    _require_writable(target, overwrite=overwrite)
    part = target.with_name(f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}.part")
    while (descriptor := _made(part)) is None:
        _remove_left(part)
    with os.fdopen(descriptor, "wb") as file:
        try:  # Unlink inside the block: the name must be gone before the lock is.
            yield file
            file.flush()
            if overwrite:
                part.replace(target)
            else:
                _link(part, target)
        finally:
            with suppress(FileNotFoundError):
                part.unlink()


def _require_writable(target: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if target.exists() and not target.is_file():
        raise OSError(f"{target.name} is there and is no file")
    if not overwrite:
        raise FileExistsError(f"{target.name} is there already")


def _link(part: Path, target: Path) -> None:
    """Link the file into place. Unlike a rename, a link never replaces another file."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise FileExistsError(f"{target.name} is there already") from None


def _made(part: Path) -> int | None:
    """Create and lock the temporary file.

    Return None if it exists, or if another process removed it meanwhile.
    """
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
    """Remove an unlocked leftover.

    It is not overwritten: it may be a second name of a complete file.

    Raises WriteInProgress.
    """
    with suppress(FileNotFoundError):
        descriptor = os.open(part, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if _locked(descriptor, part):
                part.unlink()
        finally:
            os.close(descriptor)


def _locked(descriptor: int, part: Path) -> bool:
    """Lock the open file and return True if it still has that name.

    Raises WriteInProgress if it is locked.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.lstat(part))
    except FileNotFoundError:
        return False
    except BlockingIOError:
        raise WriteInProgress("another process is writing the same file now") from None
