"""Attacks by symlinks, and by directories that change while a set is written."""

import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from spawnmesh_materialize import (
    FileSource,
    MaterializeError,
    list_directory,
    materialize,
    open_for_reading,
    open_for_writing,
    remove,
)

from tests.support.materialize.callables import MakeSource, Snapshot

SET = "set_1"
MIN_ATTEMPTS = 200


@pytest.fixture
def attacked(workspace: Path, outside: Path) -> Iterator[Path]:
    command = [
        sys.executable,
        str(Path(__file__).parents[2] / "support" / "materialize" / "attacker.py"),
        str(workspace),
        str(outside),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"swapping\n"
        try:
            yield workspace
        finally:
            attacker.kill()


def attempts_until(outcomes: dict[str, int], *needed: str) -> Iterator[None]:
    """Yield at least MIN_ATTEMPTS times, and until each needed outcome has occurred."""
    deadline = time.monotonic() + 60
    attempt = 0
    while attempt < MIN_ATTEMPTS or not all(outcomes[outcome] for outcome in needed):
        assert time.monotonic() < deadline, f"not all outcomes occurred: {outcomes}"
        attempt += 1
        yield


@pytest.mark.parametrize("planted", [".spawnmesh", ".spawnmesh/attachments", f".spawnmesh/attachments/{SET}"])
@pytest.mark.parametrize("target", ["outside", "absent"])
def test_symlink_in_the_path_is_refused(
    workspace: Path, outside: Path, source: MakeSource, snapshot: Snapshot, planted: str, target: str
) -> None:
    (workspace / planted).parent.mkdir(parents=True, exist_ok=True)
    (workspace / planted).symlink_to(outside if target == "outside" else outside / "absent")
    before = snapshot(outside)
    with pytest.raises(MaterializeError) as refused:
        materialize(workspace, SET, [source("a.txt")])
    assert refused.value.reason.value == "UNSAFE_PATH"
    assert snapshot(outside) == before


def test_workspace_that_is_a_symlink_is_refused(
    workspace: Path, outside: Path, source: MakeSource, snapshot: Snapshot
) -> None:
    (workspace / "link").symlink_to(outside)
    before = snapshot(outside)
    for call in (
        lambda: materialize(workspace / "link", SET, [source("a")]),
        lambda: remove(workspace / "link", SET),
    ):
        with pytest.raises(MaterializeError):
            call()
    assert snapshot(outside) == before


@pytest.mark.parametrize("moved", [".spawnmesh", ".spawnmesh/attachments"])
@pytest.mark.parametrize("put_in_place", ["link", "directory", "nothing"])
def test_path_that_changes_while_writing_is_detected_and_nothing_is_left(
    workspace: Path, outside: Path, snapshot: Snapshot, moved: str, put_in_place: str
) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"sec"
        (workspace / moved).rename(workspace / "aside")
        if put_in_place == "link":
            (workspace / moved).symlink_to(outside)
        if put_in_place == "directory":
            (workspace / ".spawnmesh/attachments" / SET).mkdir(parents=True)
        yield b"ret"

    before = snapshot(outside)
    with pytest.raises(MaterializeError):
        materialize(workspace, SET, [FileSource("a", 6, hashlib.sha256(b"secret").hexdigest(), chunks())])
    assert snapshot(outside) == before
    assert all(
        content == "directory" or str(content).startswith("->") for content in snapshot(workspace).values()
    )
    assert SET not in {path.name for path in (workspace / "aside").rglob("*")}


def test_files_moved_away_while_writing_are_deleted(workspace: Path, outside: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"sec"
        (staging,) = (workspace / ".spawnmesh/attachments").iterdir()
        staging.rename(outside / "carried-off")
        yield b"ret"

    with pytest.raises(MaterializeError):
        materialize(workspace, SET, [FileSource("a", 6, hashlib.sha256(b"secret").hexdigest(), chunks())])
    assert list((outside / "carried-off").iterdir()) == []


@pytest.mark.parametrize("name", ["b.txt", ".manifest.json"])
def test_symlink_in_the_staging_directory_is_refused(
    workspace: Path, outside: Path, source: MakeSource, snapshot: Snapshot, name: str
) -> None:
    def chunks() -> Iterator[bytes]:
        (staging,) = (workspace / ".spawnmesh/attachments").iterdir()
        (staging / name).symlink_to(outside / "a.txt")
        yield b"x"

    before = snapshot(outside)
    first = FileSource("a.txt", 1, hashlib.sha256(b"x").hexdigest(), chunks())
    with pytest.raises(MaterializeError) as refused:
        materialize(workspace, SET, [first, source("b.txt")])
    assert refused.value.reason.value == "ALREADY_EXISTS"
    assert snapshot(outside) == before
    assert snapshot(workspace) == {}


def test_set_written_by_a_concurrent_call_is_accepted_if_it_is_equal(
    workspace: Path, source: MakeSource
) -> None:
    def overtaken(data: bytes) -> FileSource:
        def chunks() -> Iterator[bytes]:
            materialize(workspace, SET, [source("a", b"same")])
            yield data

        return FileSource("a", len(data), hashlib.sha256(data).hexdigest(), chunks())

    materialize(workspace, SET, [overtaken(b"same")])
    assert (workspace / ".spawnmesh/attachments" / SET / "a").read_bytes() == b"same"
    remove(workspace, SET)
    with pytest.raises(MaterializeError) as refused:
        materialize(workspace, SET, [overtaken(b"else")])
    assert refused.value.reason.value == "DIFFERENT_SET"
    assert [path.name for path in (workspace / ".spawnmesh/attachments").iterdir()] == [SET]


def test_swapping_directories_for_symlinks_writes_nothing_outside(
    attacked: Path, outside: Path, source: MakeSource, snapshot: Snapshot
) -> None:
    before = snapshot(outside)
    outcomes = {"placed": 0, "refused": 0}
    for _ in attempts_until(outcomes, "refused"):
        try:
            materialize(attacked, SET, [source("a.txt", b"secret" * 50), source("b.txt", b"x")])
            outcomes["placed"] += 1
        except MaterializeError:
            outcomes["refused"] += 1
        with suppress(MaterializeError):
            remove(attacked, SET)
    assert snapshot(outside) == before


def test_swapping_directories_for_symlinks_opens_nothing_outside(
    attacked: Path, outside: Path, snapshot: Snapshot
) -> None:
    before = snapshot(outside)
    outcomes = {"done": 0, "refused": 0}
    for _ in attempts_until(outcomes, "refused", "done"):
        try:
            with open_for_writing(attacked, "tools/attachments/a.txt", create_parents=True) as file:
                file.write(b"written")
            with open_for_reading(attacked, "tools/attachments/a.txt") as file:
                assert file.read() != b"precious"
            assert SET not in {entry.name for entry in list_directory(attacked, "tools")}
            outcomes["done"] += 1
        except MaterializeError:
            outcomes["refused"] += 1
    assert snapshot(outside) == before
