"""Sandboxes that this machine can make, and the processes in them."""

import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from spawnmesh_runner.clients.sandbox.command_line import MIB, Confinement, ProcessLimits, unsandboxed

LIMITS = ProcessLimits(
    memory_bytes=512 * MIB, processes=32, open_files=128, file_bytes=4 * MIB, cpu_seconds=60
)


@functools.cache
def sandbox_problem() -> str:
    """Return why this machine lets no process make namespaces, or nothing.

    The product has no part in the answer, so that a broken sandbox fails its tests.
    """
    flags = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--net"]
    try:
        done = subprocess.run(["unshare", *flags, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "without util-linux it is not known whether this machine can make namespaces"
    return f"no namespaces can be made here: {done.stderr.strip()[-200:]}" if done.returncode else ""


def bare(arguments: Sequence[str]) -> list[str]:
    """Return the command line that starts a program without a sandbox."""
    return unsandboxed(arguments, Confinement(Path(), paths=(), network=False, limits=LIMITS))


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
