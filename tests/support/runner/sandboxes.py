"""Sandboxes that this machine can make, and the processes in them."""

import functools
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from spawnmesh_runner.clients.sandbox.command_line import MIB, Confinement, Limits, namespaces

LIMITS = Limits(memory_bytes=512 * MIB, processes=32, open_files=128, file_bytes=4 * MIB, cpu_seconds=60)


@functools.cache
def sandbox_problem() -> str:
    """Return why this machine can make no sandbox, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        confinement = Confinement(workspace=Path(folder), paths=(), network=False, limits=LIMITS)
        done = subprocess.run(
            namespaces(["/usr/bin/true"], confinement), capture_output=True, text=True, check=False
        )
    return "" if done.returncode == 0 else f"no sandbox can be made here: {done.stderr.strip()[-200:]}"


def require_sandbox() -> None:
    """Skip the test where no sandbox can be made."""
    if problem := sandbox_problem():
        pytest.skip(problem)


def processes_in(namespace: str) -> list[int]:
    """Return the processes of a pid namespace, such as `pid:[4026532345]`, by their ids out here."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "ns" / "pid") == namespace:
                found.append(int(entry.name))
        except OSError:
            continue  # It ended meanwhile.
    return found
