"""Sandboxes that this machine can make, and the processes in them."""

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from spawnmesh_runner.clients.sandbox.command_line import (
    MIB,
    CommandLine,
    Confinement,
    ProcessLimits,
    bubblewrap,
    namespaces,
    unsandboxed,
)

ACCEPT_NO_SANDBOX = "SPAWNMESH_ACCEPT_NO_SANDBOX"
"""The variable that accepts a machine on which the tests of sandboxes cannot run."""
PYTHON = "/usr/bin/python3"
"""A Python for every user: the one of the tests may lie where another user cannot come."""
BACKENDS = ("namespaces", "namespaces of another user", "bubblewrap")
_NOBODY = 65_534

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


def leave_out(problem: str) -> None:
    """Fail the test for the problem. Skip it if the environment accepts that."""
    if os.environ.get(ACCEPT_NO_SANDBOX):
        pytest.skip(problem)
    pytest.fail(f"{problem}; {ACCEPT_NO_SANDBOX}=1 accepts that the attacks on sandboxes are left out")


def require_sandbox() -> None:
    """Fail where no sandbox can be made, unless the environment accepts that."""
    if problem := sandbox_problem():
        leave_out(problem)


@dataclass(frozen=True, slots=True)
class Starter:
    """A backend and the user of the runner that starts programs with it."""

    backend: str
    uid: int
    command_line: CommandLine


def starter(name: str) -> Starter:
    """Return one of BACKENDS. Root stands for a runner of either kind of user.

    Skip the test where the backend is not installed, or says nothing new.
    """
    require_sandbox()
    uid = os.geteuid()
    if name == "namespaces":
        return Starter("namespaces", uid, namespaces)
    if name == "bubblewrap":
        if not shutil.which("bwrap"):
            pytest.skip("this machine has no bwrap")
        command_line, backend = bubblewrap, "bubblewrap"
    else:
        if uid != 0:
            pytest.skip("the user of the tests is not root, which the other test of namespaces shows")
        command_line, backend = namespaces, "namespaces"
    if uid != 0:
        return Starter(backend, uid, command_line)
    if not (shutil.which("setpriv") and os.access(PYTHON, os.X_OK)):
        leave_out("only setpriv and an interpreter for all let root be another user")

    def as_nobody(arguments: Sequence[str], confinement: Confinement) -> list[str]:
        _give(confinement.workspace)
        who = f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--no-new-privs"
        return ["setpriv", *who, "--bounding-set=-all", PYTHON, *command_line(arguments, confinement)[1:]]

    return Starter(backend, _NOBODY, as_nobody)


def _give(workspace: Path) -> None:
    """Give the workspace to the user that a runner of this user would have."""
    for path in (workspace.parent, workspace, *workspace.rglob("*")):
        os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)


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
