"""Fixtures of the tests of the materialize library."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from spawnmesh_materialize import FileSource

from tests.support.materialize.callables import MakeSource, Snapshot

NOBODY = 65534


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that shows whether a symlink was followed. It has each name that is opened."""
    path = tmp_path / "outside"
    for below in (".", "set_1", "attachments", "attachments/set_1"):
        (path / below).mkdir(exist_ok=True, parents=True)
        (path / below / "a.txt").write_bytes(b"precious")
    return path


@pytest.fixture
def source() -> MakeSource:
    def make(
        name: str, data: bytes = b"hello", *, sha256: str | None = None, claimed: int | None = None
    ) -> FileSource:
        digest = sha256 or hashlib.sha256(data).hexdigest()
        chunks = (data[start : start + 3] for start in range(0, len(data), 3))
        return FileSource(name, len(data) if claimed is None else claimed, digest, chunks)

    return make


@pytest.fixture
def snapshot() -> Snapshot:
    """Return a function that reads all files and symlink targets below a directory."""

    def take(top: Path) -> dict[str, bytes | str]:
        found: dict[str, bytes | str] = {}
        for path in sorted(top.rglob("*")):
            relative = str(path.relative_to(top))
            if path.is_symlink():
                found[relative] = f"-> {path.readlink()}"
            else:
                found[relative] = "directory" if path.is_dir() else path.read_bytes()
        return found

    return take


@pytest.fixture
def unprivileged_workspace() -> Iterator[Path]:
    """A workspace of an unprivileged user. The test runs as that user."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        if is_root:
            os.chown(path, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield Path(path)
        finally:
            if is_root:
                os.seteuid(0)


@pytest.fixture
def set_umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)
