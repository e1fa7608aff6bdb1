"""materialize: writing a set."""

import hashlib
import json
import os
import resource
import stat
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from spawnmesh_materialize import (
    FileRecord,
    FileSource,
    MaterializeError,
    MaterializeReason,
    materialize,
    remove,
)

from tests.support.disks import tiny_disk
from tests.support.materialize.callables import MakeSource, Snapshot
from tests.support.open_paths import open_paths_below

SET = "set_1"
HOME = ".spawnmesh/attachments"


def refusal(workspace: Path, files: list[FileSource], set_id: str = SET) -> MaterializeError:
    with pytest.raises(MaterializeError) as refused:
        materialize(workspace, set_id, files)
    shown = "".join(traceback.format_exception(refused.value))
    assert str(workspace) not in f"{refused.value} {refused.value!r} {shown}"
    return refused.value


def unread(name: str, data: bytes) -> FileSource:
    chunks = (pytest.fail("contents were read") for _ in range(1))
    return FileSource(name, len(data), hashlib.sha256(data).hexdigest(), chunks)


def modes(workspace: Path) -> dict[str, int]:
    found = sorted((workspace / ".spawnmesh").rglob("*"))
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in [workspace / ".spawnmesh", *found]}


def test_set_is_written_to_its_directory_with_its_manifest(workspace: Path, source: MakeSource) -> None:
    placed = materialize(workspace, SET, [source("b é.txt", b"two" * 1000), source("a.bin", b"")])
    assert placed.rel_dir == f"{HOME}/{SET}"
    assert placed.files == (
        FileRecord("a.bin", 0, hashlib.sha256(b"").hexdigest()),
        FileRecord("b é.txt", 3000, hashlib.sha256(b"two" * 1000).hexdigest()),
    )
    directory = workspace / placed.rel_dir
    assert {path.name for path in directory.iterdir()} == {"a.bin", "b é.txt", ".manifest.json"}
    assert (directory / "b é.txt").read_bytes() == b"two" * 1000
    manifest = json.loads((directory / ".manifest.json").read_text("utf-8"))
    assert manifest["set"] == SET
    assert [file["name"] for file in manifest["files"]] == ["a.bin", "b é.txt"]
    assert manifest["files"][1] == {"name": "b é.txt", "bytes": 3000, "sha256": placed.files[1].sha256}
    assert os.listdir(workspace / HOME) == [SET]


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
def test_modes_do_not_depend_on_the_umask(
    unprivileged_workspace: Path, source: MakeSource, set_umask: Callable[[int], int], mask: int
) -> None:
    set_umask(mask)
    materialize(unprivileged_workspace, SET, [source("a.txt")])
    assert modes(unprivileged_workspace) == {
        ".spawnmesh": 0o700,
        "attachments": 0o700,
        SET: 0o700,
        "a.txt": 0o600,
        ".manifest.json": 0o600,
    }
    remove(unprivileged_workspace, SET)


def test_modes_of_existing_directories_are_restricted(workspace: Path, source: MakeSource) -> None:
    (workspace / HOME).mkdir(parents=True)
    for path in (workspace / ".spawnmesh", workspace / HOME):
        path.chmod(0o777)
    materialize(workspace, SET, [source("a.txt")])
    assert [modes(workspace)[name] for name in (".spawnmesh", "attachments")] == [0o700, 0o700]


def test_writing_the_same_set_again_writes_and_reads_nothing(
    workspace: Path, source: MakeSource, snapshot: Snapshot
) -> None:
    first = materialize(workspace, SET, [source("a.txt", b"aa"), source("b.txt", b"b")])
    path = workspace / HOME / SET / "a.txt"
    before = path.stat()
    again = materialize(workspace, SET, [unread("b.txt", b"b"), unread("a.txt", b"aa")])
    assert again == first
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_other_contents_under_the_same_id_are_refused(
    workspace: Path, source: MakeSource, snapshot: Snapshot
) -> None:
    materialize(workspace, SET, [source("a.txt", b"aa")])
    before = snapshot(workspace)
    for other in (
        [unread("a.txt", b"ab")],
        [unread("b.txt", b"aa")],
        [],
        [unread("a.txt", b"aa"), unread("b", b"")],
    ):
        assert refusal(workspace, other).reason is MaterializeReason.DIFFERENT_SET
    assert snapshot(workspace) == before


def test_directory_without_manifest_is_refused(workspace: Path) -> None:
    (workspace / HOME / SET).mkdir(parents=True)
    assert refusal(workspace, [unread("a", b"")]).reason is MaterializeReason.DIFFERENT_SET


@pytest.mark.parametrize("fault", ["hash", "short", "long", "source"])
def test_failed_file_leaves_nothing(
    workspace: Path, source: MakeSource, snapshot: Snapshot, fault: str
) -> None:
    def breaking() -> Iterator[bytes]:
        yield b"he"
        raise ConnectionResetError("peer went away")

    good = hashlib.sha256(b"hello").hexdigest()
    bad = {
        "hash": source("b.txt", b"hellx", sha256=good),
        "short": source("b.txt", b"hello", claimed=6),
        "long": source("b.txt", b"hello" * 100, claimed=5),
        "source": FileSource("b.txt", 5, good, breaking()),
    }[fault]
    with pytest.raises((MaterializeError, ConnectionResetError)) as failed:
        materialize(workspace, SET, [source("a.txt"), bad])
    assert snapshot(workspace) == {}
    if isinstance(failed.value, MaterializeError):
        assert failed.value.reason is MaterializeReason[{"hash": "HASH_MISMATCH"}.get(fault, "SIZE_MISMATCH")]
        assert failed.value.facts == {"index": 1}


def test_failure_keeps_directories_that_others_created_meanwhile(workspace: Path) -> None:
    def chunks() -> Iterator[bytes]:
        (workspace / HOME / SET).mkdir()
        yield b"x"

    refusal(workspace, [FileSource("a", 1, "0" * 64, chunks())])
    assert os.listdir(workspace / HOME) == [SET]


def test_failure_keeps_other_sets(workspace: Path, source: MakeSource, snapshot: Snapshot) -> None:
    materialize(workspace, "set_0", [source("a.txt")])
    before = snapshot(workspace)
    refusal(workspace, [source("a.txt", claimed=1)])
    assert snapshot(workspace) == before


def test_source_that_is_too_long_is_not_read_to_its_end(workspace: Path) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(10):
            yield b"x" * 100
        pytest.fail("read on after the announced size")

    assert (
        refusal(workspace, [FileSource("a", 500, "0" * 64, endless())]).reason
        is MaterializeReason.SIZE_MISMATCH
    )


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "../a", "a\0", "x" * 256, ".manifest.json", ".MANIFEST.json"]
)
def test_invalid_name_is_refused_before_anything_is_created(
    workspace: Path, snapshot: Snapshot, name: str
) -> None:
    refused = refusal(workspace, [unread("ok", b""), unread(name, b"")])
    assert (refused.reason, refused.facts) == (MaterializeReason.INVALID_NAME, {"index": 1})
    assert snapshot(workspace) == {}


def test_repeated_name_is_refused(workspace: Path) -> None:
    assert refusal(workspace, [unread("a", b""), unread("A", b"")]).reason is MaterializeReason.INVALID_NAME


@pytest.mark.parametrize("set_id", ["", ".", "..", "a/b", "../x", "a.b", ".x", "-x", "a\n", "x" * 129, "é"])
def test_invalid_set_id_is_refused(workspace: Path, snapshot: Snapshot, set_id: str) -> None:
    assert refusal(workspace, [], set_id).reason is MaterializeReason.INVALID_SET_ID
    with pytest.raises(MaterializeError):
        remove(workspace, set_id)
    assert snapshot(workspace) == {}


def test_missing_workspace_is_a_typed_failure(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent", []).reason is MaterializeReason.NOT_FOUND


def test_workspace_without_write_permission_leaves_nothing(
    unprivileged_workspace: Path, snapshot: Snapshot
) -> None:
    unprivileged_workspace.chmod(0o500)
    refused = refusal(unprivileged_workspace, [unread("a", b"")])
    assert (refused.reason, refused.facts["errno"]) == (MaterializeReason.NO_PERMISSION, "EACCES")
    unprivileged_workspace.chmod(0o700)
    assert snapshot(unprivileged_workspace) == {}


def test_file_size_limit_of_the_process_leaves_nothing(
    workspace: Path, source: MakeSource, snapshot: Snapshot
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        refused = refusal(workspace, [source("a", b"x"), source("b", b"x" * 9000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (refused.reason, refused.facts) == (
        MaterializeReason.FILE_TOO_LARGE,
        {"index": 1, "errno": "EFBIG"},
    )
    assert snapshot(workspace) == {}


@pytest.fixture(name="tiny_disk")
def _tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with tiny_disk(tmp_path / "disk") as path:
        yield path


def test_full_disk_leaves_nothing_and_the_next_set_fits(
    tiny_disk: Path, source: MakeSource, snapshot: Snapshot
) -> None:
    refused = refusal(tiny_disk, [source("a", b"x" * 30_000), source("b", b"y" * 60_000)])
    assert (refused.reason, refused.facts) == (MaterializeReason.DISK_FULL, {"index": 1, "errno": "ENOSPC"})
    assert snapshot(tiny_disk) == {}
    materialize(tiny_disk, SET, [source("a", b"x" * 40_000)])


def test_twenty_concurrent_calls_agree(workspace: Path, source: MakeSource) -> None:
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(materialize, workspace, SET, [source("a", b"x" * 500)]) for _ in range(20)]
        assert len({call.result() for call in calls}) == 1
    assert os.listdir(workspace / HOME) == [SET]
    assert (workspace / HOME / SET / "a").read_bytes() == b"x" * 500


def test_sets_are_written_and_removed_concurrently(
    workspace: Path, source: MakeSource, snapshot: Snapshot
) -> None:
    def come_and_go(number: int) -> None:
        for _ in range(10):
            materialize(workspace, f"set_{number}", [source("a", b"x")])
            remove(workspace, f"set_{number}")

    with ThreadPoolExecutor(4) as pool:
        for call in [pool.submit(come_and_go, number) for number in range(4)]:
            call.result()
    assert snapshot(workspace) == {}


def test_set_is_written_while_empty_parents_are_removed(workspace: Path, source: MakeSource) -> None:
    done = threading.Event()

    def remove_others() -> None:
        while not done.is_set():
            remove(workspace, "set_0")

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(remove_others) for _ in range(2)]
        try:
            for _ in range(100):
                materialize(workspace, SET, [source("a")])
                remove(workspace, SET)
        finally:
            done.set()
        for other in others:
            other.result()


def test_no_descriptor_is_left_open(workspace: Path, source: MakeSource) -> None:
    materialize(workspace, SET, [source("a")])
    materialize(workspace, SET, [source("a")])
    refusal(workspace, [source("b")])
    refusal(workspace, [source("b", claimed=9)], "set_2")
    remove(workspace, SET)
    assert open_paths_below(workspace) == []
