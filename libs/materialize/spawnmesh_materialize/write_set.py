"""Writes a set into a workspace, completely or not at all."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from spawnmesh_materialize.descend import make_directory_at, open_or_make_private_directory_at, opened_below
from spawnmesh_materialize.erase import empty_directory
from spawnmesh_materialize.errors import MaterializeError, MaterializeReason, os_errors_typed
from spawnmesh_materialize.layout import HOME, rel_dir_of, staging_name
from spawnmesh_materialize.manifest import (
    MANIFEST_NAME,
    FileRecord,
    FileSource,
    check_names,
    check_set_id,
    manifest_bytes,
)
from spawnmesh_materialize.remove_set import prune_home
from spawnmesh_materialize.safe_open import FILE_MODE

_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A concurrent removal of another set may delete the empty parent directories: then start again.
_MAX_STARTS = 100


@dataclass(frozen=True, slots=True)
class Materialized:
    """A written set: its directory relative to the workspace, and its files sorted by name."""

    rel_dir: str
    files: tuple[FileRecord, ...]


def materialize(workspace: Path, set_id: str, files: Iterable[FileSource]) -> Materialized:
    """Write `files` and their manifest to `<workspace>/.spawnmesh/attachments/<set_id>/`.

    - Directories get mode 0700 and files 0600 under any umask.
    - Size and SHA-256 of each file are checked. All files are flushed to disk, then the directory
      is renamed into place.
    - If the set exists with the same manifest, it is left as it is and no chunk is read. The agent
      may have changed its files. A set with another manifest raises DIFFERENT_SET.
    - On return, the path from the workspace to the set has been checked to contain no symlink.

    Raises MaterializeError, and any error of `chunks` unchanged. After an error, nothing of the set
    is left. Only a killed process leaves a temporary directory behind, which `remove` deletes.
    """
    check_set_id(set_id)
    sources = list(files)
    check_names(sources)
    records = tuple(sorted((source.record for source in sources), key=lambda record: record.name))
    manifest = manifest_bytes(set_id, records)
    if not _is_in_place(workspace, set_id, manifest):
        try:
            _write_and_place(workspace, set_id, sources, manifest)
        except BaseException:
            with suppress(MaterializeError):
                prune_home(workspace)
            raise
    return Materialized(rel_dir_of(set_id), records)


def _is_in_place(workspace: Path, set_id: str, manifest: bytes) -> bool:
    """Return whether the set is in place.

    Raises MaterializeError if the id belongs to another set.
    """
    try:
        with opened_below(workspace, [*HOME, set_id]) as set_fd:
            is_same = _holds_manifest(set_fd, manifest)
    except MaterializeError as error:
        if error.reason is MaterializeReason.NOT_FOUND:
            return False
        raise
    if not is_same:
        raise MaterializeError(MaterializeReason.DIFFERENT_SET)
    return True


def _holds_manifest(set_fd: int, manifest: bytes) -> bool:
    try:
        fd = os.open(MANIFEST_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=set_fd)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file, os_errors_typed():
        status = os.fstat(fd)
        # A manifest of another size differs and need not be read.
        return stat.S_ISREG(status.st_mode) and status.st_size == len(manifest) and file.read() == manifest


def _write_and_place(workspace: Path, set_id: str, sources: list[FileSource], manifest: bytes) -> None:
    staging = staging_name(set_id)
    with ExitStack() as open_fds:
        home_fd, staging_fd = _start_staging(workspace, staging, open_fds)
        try:
            for index, source in enumerate(sources):
                _write_checked(staging_fd, index, source)
            _write_manifest(staging_fd, manifest)
            _place(workspace, set_id, staging, home_fd, staging_fd, manifest)
        except BaseException:
            _discard(home_fd, (staging, set_id), staging_fd)
            raise


def _start_staging(workspace: Path, staging: str, open_fds: ExitStack) -> tuple[int, int]:
    """Open the directory of all sets and a new directory in it. `open_fds` closes both."""
    starts_left = _MAX_STARTS
    while True:
        starts_left -= 1
        try:
            with ExitStack() as opened:
                home_fd = opened.enter_context(
                    opened_below(workspace, HOME, open_or_make_private_directory_at)
                )
                with os_errors_typed():
                    staging_fd = make_directory_at(home_fd, staging)
                opened.callback(os.close, staging_fd)
                open_fds.enter_context(opened.pop_all())
                return home_fd, staging_fd
        except MaterializeError as error:
            if error.reason is not MaterializeReason.NOT_FOUND or not starts_left:
                raise


def _write_checked(staging_fd: int, index: int, source: FileSource) -> None:
    digest = hashlib.sha256()
    size = 0
    with _new_file(staging_fd, source.name, index=index) as fd:
        for chunk in source.chunks:
            size += len(chunk)
            if size > source.size_bytes:
                break
            digest.update(chunk)
            with os_errors_typed(index=index):
                _write_all(fd, chunk)
    if size != source.size_bytes:
        raise MaterializeError(MaterializeReason.SIZE_MISMATCH, index=index)
    if digest.hexdigest() != source.sha256:
        raise MaterializeError(MaterializeReason.HASH_MISMATCH, index=index)


def _write_manifest(staging_fd: int, manifest: bytes) -> None:
    with _new_file(staging_fd, MANIFEST_NAME) as fd, os_errors_typed():
        _write_all(fd, manifest)


@contextmanager
def _new_file(directory_fd: int, name: str, **facts: int) -> Iterator[int]:
    """Create a file with mode 0600 under any umask, and flush it to disk after the block."""
    with os_errors_typed(**facts):
        fd = os.open(name, _NEW_FILE_FLAGS, FILE_MODE, dir_fd=directory_fd)
    try:
        with os_errors_typed(**facts):
            os.fchmod(fd, FILE_MODE)
        yield fd
        with os_errors_typed(**facts):
            os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _place(
    workspace: Path, set_id: str, staging: str, home_fd: int, staging_fd: int, manifest: bytes
) -> None:
    """Rename the finished directory to the set's name, and check that the path leads to it."""
    with os_errors_typed():
        os.fsync(staging_fd)
    try:
        with os_errors_typed():
            os.rename(staging, set_id, src_dir_fd=home_fd, dst_dir_fd=home_fd)
    except MaterializeError:
        # Another call may have been faster. That is fine if it wrote the same set.
        if not _is_in_place(workspace, set_id, manifest):
            raise
        _discard(home_fd, (staging,), staging_fd)
        return
    with os_errors_typed():
        os.fsync(home_fd)
    with opened_below(workspace, [*HOME, set_id]) as reached_fd, os_errors_typed():
        if not os.path.samestat(os.fstat(reached_fd), os.fstat(staging_fd)):
            raise MaterializeError(MaterializeReason.UNSAFE_PATH)


def _discard(home_fd: int, names: Iterable[str], staging_fd: int) -> None:
    """Delete the written files, even if their directory was moved.

    Delete the directory itself if it has one of `names`.
    """
    with suppress(OSError):
        empty_directory(staging_fd)
    for name in names:
        with suppress(OSError):
            status = os.stat(name, dir_fd=home_fd, follow_symlinks=False)
            if os.path.samestat(status, os.fstat(staging_fd)):
                os.rmdir(name, dir_fd=home_fd)
