"""open_for_reading, open_for_writing and list_directory."""

import os
import stat
from pathlib import Path

import pytest
from spawnmesh_materialize import (
    DirectoryEntry,
    FileKind,
    MaterializeError,
    MaterializeReason,
    list_directory,
    open_for_reading,
    open_for_writing,
)

from tests.support.materialize.callables import Snapshot
from tests.support.open_paths import open_paths_below


def reasons(root: Path, relative: str) -> set[MaterializeReason]:
    """Return the reasons with which reading and writing refuse the path."""
    found = set()
    for open_file in (open_for_reading, open_for_writing):
        with pytest.raises(MaterializeError) as refused:
            open_file(root, relative).close()
        assert str(root) not in f"{refused.value!r}"
        found.add(refused.value.reason)
    return found


def test_file_is_written_and_read_back(workspace: Path) -> None:
    with open_for_writing(workspace, "one/two/three.txt", create_parents=True) as file:
        file.write(b"long first text")
    with open_for_writing(workspace, "./one//two/three.txt") as file:
        file.write(b"short")
    with open_for_reading(workspace, "one/two/three.txt") as file:
        assert file.read() == b"short"
    assert stat.S_IMODE((workspace / "one/two").stat().st_mode) == 0o700
    assert stat.S_IMODE((workspace / "one/two/three.txt").stat().st_mode) == 0o600


def test_modes_of_existing_files_and_directories_are_kept(workspace: Path) -> None:
    (workspace / "bin").mkdir(mode=0o755)
    (workspace / "bin").chmod(0o755)
    (workspace / "bin/run").write_text("old")
    (workspace / "bin/run").chmod(0o755)
    open_for_writing(workspace, "bin/run", create_parents=True).close()
    assert [stat.S_IMODE((workspace / name).stat().st_mode) for name in ("bin", "bin/run")] == [0o755, 0o755]


@pytest.mark.parametrize(
    "relative", ["/etc/passwd", "..", "../x", "a/../../x", "a/..", "a\0b", "\udcff\ud800"]
)
def test_path_that_may_leave_the_root_is_refused(workspace: Path, relative: str) -> None:
    (workspace / "a").mkdir()
    assert reasons(workspace, relative) == {MaterializeReason.INVALID_PATH}
    with pytest.raises(MaterializeError):
        list_directory(workspace, relative)


@pytest.mark.parametrize("relative", ["", ".", "directory", "directory/", "file/.", "pipe", "pipe/"])
def test_entries_that_are_not_regular_files_are_refused(workspace: Path, relative: str) -> None:
    (workspace / "directory").mkdir()
    (workspace / "file").touch()
    os.mkfifo(workspace / "pipe")
    assert reasons(workspace, relative) == {MaterializeReason.NOT_A_FILE}


@pytest.mark.parametrize(
    "relative", ["link", "to-file", "dangling", "link/a.txt", "dir/link/a.txt", "inner/f"]
)
def test_symlink_anywhere_is_refused(
    workspace: Path, outside: Path, snapshot: Snapshot, relative: str
) -> None:
    (workspace / "dir").mkdir()
    (workspace / "dir/f").write_text("inside")
    (workspace / "inner").symlink_to("dir")
    (workspace / "link").symlink_to(outside)
    (workspace / "dir/link").symlink_to(outside)
    (workspace / "to-file").symlink_to(outside / "a.txt")
    (workspace / "dangling").symlink_to(outside / "new.txt")
    before = snapshot(outside)
    assert reasons(workspace, relative) == {MaterializeReason.UNSAFE_PATH}
    with pytest.raises(MaterializeError):
        open_for_writing(workspace, relative, create_parents=True)
    assert snapshot(outside) == before


def test_root_that_is_a_symlink_is_refused(workspace: Path, outside: Path) -> None:
    (workspace / "root").symlink_to(outside)
    assert reasons(workspace / "root", "a.txt") == {MaterializeReason.UNSAFE_PATH}


def test_file_with_two_hard_links_is_not_read(workspace: Path, outside: Path) -> None:
    (workspace / "hard").hardlink_to(outside / "a.txt")
    with pytest.raises(MaterializeError) as refused:
        open_for_reading(workspace, "hard")
    assert refused.value.reason is MaterializeReason.UNSAFE_PATH


def test_file_with_two_hard_links_is_not_written(workspace: Path, outside: Path) -> None:
    (workspace / "hard").hardlink_to(outside / "a.txt")
    with pytest.raises(MaterializeError) as refused:
        open_for_writing(workspace, "hard")
    assert refused.value.reason is MaterializeReason.UNSAFE_PATH
    assert (outside / "a.txt").read_bytes() == b"precious"


def test_missing_entries_and_wrong_kinds_have_different_reasons(workspace: Path) -> None:
    (workspace / "file").touch()
    for relative, reason in [
        ("absent", MaterializeReason.NOT_FOUND),
        ("absent/x", MaterializeReason.NOT_FOUND),
        ("file/x", MaterializeReason.NOT_A_DIRECTORY),
        ("x" * 300, MaterializeReason.INVALID_PATH),
    ]:
        with pytest.raises(MaterializeError) as refused:
            open_for_reading(workspace, relative)
        assert refused.value.reason is reason


def test_directory_is_listed_by_name_without_following_symlinks(workspace: Path, outside: Path) -> None:
    (workspace / "b").write_bytes(b"12")
    (workspace / "a").mkdir()
    (workspace / "c").symlink_to(outside)
    os.mkfifo(workspace / "d")
    assert list_directory(workspace) == [
        DirectoryEntry("a", FileKind.DIRECTORY, 0),
        DirectoryEntry("b", FileKind.FILE, 2),
        DirectoryEntry("c", FileKind.SYMLINK, 0),
        DirectoryEntry("d", FileKind.OTHER, 0),
    ]
    assert list_directory(workspace, "a") == []
    for relative, reason in [("c", MaterializeReason.UNSAFE_PATH), ("b", MaterializeReason.NOT_A_DIRECTORY)]:
        with pytest.raises(MaterializeError) as refused:
            list_directory(workspace, relative)
        assert refused.value.reason is reason


def test_no_descriptor_is_left_open(workspace: Path, outside: Path) -> None:
    (workspace / "hard").hardlink_to(outside / "a.txt")
    (workspace / "directory").mkdir()
    for relative in ("hard", "directory", "absent/x", "directory/x/y"):
        with pytest.raises(MaterializeError):
            open_for_writing(workspace, relative)
    assert open_paths_below(workspace) == []
