"""Disks that are really full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tiny_disk(path: Path, size: str = "64k") -> Iterator[Path]:
    """Mount a file system of that size on `path`. Skips the test without the right to do so."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a tmpfs here")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)
