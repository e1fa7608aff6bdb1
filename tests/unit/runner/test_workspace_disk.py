"""A runner checks that the disk of its workspaces has free space."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from spawnmesh_runner.clients import workspace_disk
from spawnmesh_runner.clients.workspace_disk import WorkspaceDisk

from tests.support.disks import tiny_disk


async def test_a_disk_has_room_for_less_than_it_has(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as root:
        assert await WorkspaceDisk(root, 64 * 1024).has_room()
        assert not await WorkspaceDisk(root, 64 * 1024 + 1).has_room()


async def test_a_disk_that_was_full_is_believed_only_after_bytes_were_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tiny_disk(tmp_path / "disk") as root:
        roomy = SimpleNamespace(f_bavail=1 << 20, f_frsize=4096, f_files=0, f_favail=0)
        monkeypatch.setattr(workspace_disk.os, "statvfs", lambda _: roomy)
        disk = WorkspaceDisk(root, 48 * 1024)
        (root / "filler").write_bytes(b"x" * 32 * 1024)
        assert await disk.has_room()
        disk.met_full()
        assert not await disk.has_room()
        assert not await disk.has_room()
        (root / "filler").unlink()
        assert await disk.has_room()
        assert list(root.iterdir()) == []


async def test_a_disk_without_inodes_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used_up = SimpleNamespace(f_bavail=1 << 20, f_frsize=4096, f_files=1000, f_favail=99)
    monkeypatch.setattr(workspace_disk.os, "statvfs", lambda _: used_up)
    assert not await WorkspaceDisk(tmp_path, 0).has_room()
