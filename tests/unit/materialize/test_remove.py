"""remove: removing a set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spawnmesh_materialize import MaterializeError, MaterializeReason, materialize, remove

from tests.support.materialize.callables import MakeSource, Snapshot

SET = "set_1"
HOME = ".spawnmesh/attachments"


def test_removed_set_leaves_no_trace_and_may_be_removed_again(
    workspace: Path, source: MakeSource, snapshot: Snapshot
) -> None:
    (workspace / "mine.txt").write_text("kept")
    materialize(workspace, SET, [source("a"), source("b")])
    remove(workspace, SET)
    assert snapshot(workspace) == {"mine.txt": b"kept"}
    remove(workspace, SET)
    remove(workspace / "absent", SET)


def test_other_sets_are_kept(workspace: Path, source: MakeSource) -> None:
    for set_id in (SET, "set_10", "set"):
        materialize(workspace, set_id, [source("a")])
    (workspace / HOME / ".staging-set_10.half").mkdir()
    remove(workspace, SET)
    assert sorted(os.listdir(workspace / HOME)) == [".staging-set_10.half", "set", "set_10"]


def test_leftover_of_a_killed_call_is_removed(workspace: Path, snapshot: Snapshot) -> None:
    leftover = workspace / HOME / f".staging-{SET}.0123"
    leftover.mkdir(parents=True)
    (leftover / "a").write_bytes(b"half")
    remove(workspace, SET)
    assert snapshot(workspace) == {}


def test_symlinks_inside_are_deleted_and_not_followed(
    workspace: Path, outside: Path, source: MakeSource, snapshot: Snapshot
) -> None:
    materialize(workspace, SET, [source("a")])
    inside = workspace / HOME / SET
    (inside / "deep").mkdir()
    for name in ("link", "deep/link"):
        (inside / name).symlink_to(outside)
        (inside / f"{name}-file").symlink_to(outside / "a.txt")
    before = snapshot(outside)
    remove(workspace, SET)
    assert snapshot(workspace) == {}
    assert snapshot(outside) == before


def test_symlink_in_place_of_the_set_is_deleted_and_not_followed(
    workspace: Path, outside: Path, snapshot: Snapshot
) -> None:
    (workspace / HOME).mkdir(parents=True)
    (workspace / HOME / SET).symlink_to(outside / SET)
    before = snapshot(outside)
    remove(workspace, SET)
    assert snapshot(workspace) == {}
    assert snapshot(outside) == before


@pytest.mark.parametrize("planted", [".spawnmesh", HOME])
def test_symlink_in_the_path_is_refused(
    workspace: Path, outside: Path, snapshot: Snapshot, planted: str
) -> None:
    (workspace / planted).parent.mkdir(exist_ok=True)
    (workspace / planted).symlink_to(outside)
    before = snapshot(outside)
    with pytest.raises(MaterializeError) as refused:
        remove(workspace, SET)
    assert refused.value.reason is MaterializeReason.UNSAFE_PATH
    assert snapshot(outside) == before


def test_deep_tree_of_unreadable_directories_is_removed(
    unprivileged_workspace: Path, source: MakeSource
) -> None:
    materialize(unprivileged_workspace, SET, [source("a")])
    fd = os.open(unprivileged_workspace / HOME / SET, os.O_RDONLY)
    above: list[int] = []
    for _ in range(300):
        os.mkdir("d", dir_fd=fd)
        above.append(fd)
        fd = os.open("d", os.O_RDONLY, dir_fd=fd)
    for directory_fd in [fd, *reversed(above)]:
        os.fchmod(directory_fd, 0)
        os.close(directory_fd)
    (unprivileged_workspace / HOME).chmod(0)
    remove(unprivileged_workspace, SET)
    assert os.listdir(unprivileged_workspace) == []


def test_entries_renamed_during_the_removal_are_removed(workspace: Path, snapshot: Snapshot) -> None:
    for _ in range(4):
        for n in range(100):
            below = workspace / HOME / SET / f"{n}" / "deep"
            below.mkdir(parents=True)
            (below / "file").write_bytes(b"x")
        command = [
            sys.executable,
            str(Path(__file__).parents[2] / "support" / "materialize" / "renamer.py"),
            str(workspace / HOME),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as renamer:
            assert renamer.stdout is not None
            assert renamer.stdout.readline() == b"renaming\n"
            try:
                remove(workspace, SET)
                assert snapshot(workspace) == {}
            finally:
                renamer.kill()
