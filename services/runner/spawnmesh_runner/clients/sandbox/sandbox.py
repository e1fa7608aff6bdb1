"""The way in which this runner starts programs, found out by a trial when it starts."""

import asyncio
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import structlog
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_runner.clients.sandbox.command_line import (
    MIB,
    CommandLine,
    Confinement,
    ProcessLimits,
    bubblewrap,
    namespaces,
    unsandboxed,
)
from spawnmesh_runner.clients.sandbox.processes import ProcessTable
from spawnmesh_runner.clients.workspace import private_workspace

log = structlog.get_logger()

UNSANDBOXED, UNAVAILABLE = "none", "unavailable"
_TRIAL_SECONDS = 20.0
_TRIAL_LIMITS = ProcessLimits(
    memory_bytes=256 * MIB, processes=16, open_files=64, file_bytes=MIB, cpu_seconds=10
)
_MAX_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The way to start programs.

    Without a command line none may be started: there is no sandbox, and the operator did not allow
    programs without one.
    """

    backend: str
    command_line: CommandLine | None
    cgroup: Path | None = None
    """The cgroup below which each program gets one of its own."""
    processes: ProcessTable = field(default_factory=ProcessTable)


NO_SANDBOX = Sandbox(UNAVAILABLE, None)
"""The sandbox of a runner that looked for none, or found none."""


FindSandbox = Callable[[Path, bool], Awaitable[Sandbox]]


async def find_sandbox(workspace_root: Path, allow_unsandboxed: bool) -> Sandbox:
    """Return the first backend with which `true` ends well, and log which one it is.

    With `allow_unsandboxed` none is tried.
    """
    if allow_unsandboxed:
        log.warning("mcp_servers_unsandboxed", because="RUNNER_UNSANDBOXED_STDIO_SERVERS is set")
        return Sandbox(UNSANDBOXED, unsandboxed)
    problems = {}
    for backend, command_line in _backends():
        start = monotonic_seconds()
        problem = await _try(command_line, workspace_root)
        if not problem:
            milliseconds = round((monotonic_seconds() - start) * 1000)
            log.info("mcp_servers_sandboxed", backend=backend, start_milliseconds=milliseconds)
            return Sandbox(backend, command_line)
        problems[backend] = problem
    log.error(
        "mcp_sandbox_unavailable",
        problems=problems,
        advice="allow user namespaces to this process, or give the servers an address,"
        " or set RUNNER_UNSANDBOXED_STDIO_SERVERS; see docs/howto/mcp.md",
    )
    return NO_SANDBOX


def _backends() -> Iterator[tuple[str, CommandLine]]:
    """Yield the backends, best first.

    Bubblewrap would let a program of a root runner keep root's user, so a root runner does without.
    """
    if os.geteuid() != 0 and shutil.which("bwrap"):
        yield "bubblewrap", bubblewrap
    yield "namespaces", namespaces


async def _try(command_line: CommandLine, workspace_root: Path) -> str:
    """Run `true` in a workspace. Return what is wrong, or nothing."""
    program = shutil.which("true", path="/usr/bin:/bin")
    if program is None:
        return "this system has no program `true`"
    async with private_workspace(workspace_root, f"sandbox-{uuid4().hex}") as workspace:
        confinement = Confinement(workspace=workspace, paths=(), network=False, limits=_TRIAL_LIMITS)
        try:
            process = await asyncio.create_subprocess_exec(
                *command_line([program], confinement), stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env={}
            )
        except OSError as error:
            return f"it cannot be started: {error.strerror}"
        try:
            async with asyncio.timeout(_TRIAL_SECONDS):
                _, said = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"it does not end within {_TRIAL_SECONDS:g} seconds"
    if process.returncode == 0:
        return ""
    reason = " | ".join(said.decode(errors="replace").split("\n")).strip(" |")
    return reason[-_MAX_REASON_CHARACTERS:] or f"it ended with code {process.returncode}"
