"""Child processes that end with this process, even if it is killed with SIGKILL.

There are two guards. Linux signals the child when the thread that started it dies (`tied`). A
watchdog process ends the child with all its descendants; only the watchdog can wait, insist, and
reach grandchildren.
"""

import asyncio
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import Protocol

import psutil

from spawnmesh_devstack import tied
from spawnmesh_devstack.failures import StartFailed
from spawnmesh_devstack.family import family, signal_all
from spawnmesh_devstack.watchdog import Watchdog

_POLL_SECONDS = 0.01
_PROBE_SECONDS = 0.05  # A probe is a call or a query, and a process needs a second to start.
_TAIL_BYTES = 16_384
_ORPHAN_GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class Command:
    """The command to run. Output is appended to `log_file` (0600), standard input is empty, and
    `env` None inherits the environment.

    `user` is a system account to switch to, which needs root. `orphan_signal` is the signal for the
    child when this process dies.
    """

    name: str
    argv: tuple[str, ...]
    log_file: Path
    env: Mapping[str, str] | None = None
    working_directory: Path | None = None
    user: str | None = None
    stop_signal: Signals = SIGTERM
    orphan_signal: Signals = SIGTERM


class Child(Protocol):
    """A process that is to be reaped, as `subprocess.Popen` is."""

    @property
    def pid(self) -> int:
        """The process id, which is the id of its session too."""

    def poll(self) -> int | None:
        """Reap the process if it has ended, and return its exit code; None while it runs."""


Execute = Callable[[Command, int], Child]
"""Start a command, with its output to the open file."""


class ChildProcess:
    """A started child. A child that has ended is reaped whenever `returncode` is read."""

    def __init__(self, command: Command, child: Child, watchdog: Watchdog, log_start: int) -> None:
        self.name = command.name
        self.pid = child.pid
        self._command = command
        self._child = child
        self._leader = psutil.Process(child.pid)
        self._watchdog = watchdog
        self._log_start = log_start

    @property
    def log_file(self) -> Path:
        """The file to which its output is appended."""
        return self._command.log_file

    @property
    def returncode(self) -> int | None:
        """None while it runs; -N after a death by signal N."""
        return self._child.poll()

    async def wait(self) -> int:
        """Wait for the end of the process without a time-out."""
        await _until(lambda: self.returncode is not None)
        code = self.returncode
        assert code is not None
        return code

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Ask the process to end, kill it after the grace period, and leave none of its descendants
        running. Repeatable.
        """
        if self.returncode is None:
            members = family(self._leader)
            signal_all([self._leader], self._command.stop_signal)
            signal_all(members, SIGCONT)  # a paused process would never see the request
            await _until(lambda: self.returncode is not None, grace_seconds)
            signal_all(members, SIGKILL)
        await self._end_descendants()

    async def kill(self) -> None:
        """End the process and its descendants with SIGKILL, as a crash would, and reap it."""
        signal_all(family(self._leader), SIGKILL)
        await self._end_descendants()

    def pause(self) -> None:
        """Stop the process and its descendants until `resume`; their connections stay open and
        answer nothing.
        """
        signal_all(family(self._leader), SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process and its descendants."""
        signal_all(family(self._leader), SIGCONT)

    def tail(self, lines: int = 20) -> str:
        """Return the last lines that this process (not a predecessor with the same log) has written
        so far.
        """
        with self._command.log_file.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    async def _end_descendants(self) -> None:
        await self.wait()
        while rest := family(self._leader):
            signal_all(rest, SIGKILL)
            await asyncio.sleep(_POLL_SECONDS)
        self._watchdog.forget(self.pid)


def execute(command: Command, log: int) -> subprocess.Popen[bytes]:
    """Start the program in a session of its own, tied to this process."""
    return subprocess.Popen(  # noqa: S603 - running the given program, without a shell, is the purpose
        [*_tie(command), *command.argv],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=None if command.env is None else dict(command.env),
        cwd=command.working_directory,
        start_new_session=True,
    )


def start_process(command: Command, watchdog: Watchdog, execute: Execute = execute) -> ChildProcess:
    """Start the child in a session of its own, so that Ctrl-C reaches it only through this process.

    Call it from the main thread: the child dies with the thread that started it. Raises
    RuntimeError elsewhere.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("child processes are tied to a thread; start them from the main one")
    command.log_file.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(command.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        log_start = os.lseek(log, 0, os.SEEK_END)
        child = execute(command, log)
    finally:
        os.close(log)
    process = ChildProcess(command, child, watchdog, log_start)
    watchdog.watch(child.pid, command.orphan_signal, _ORPHAN_GRACE_SECONDS)
    return process


async def until_ready(
    process: ChildProcess, probe: Callable[[], Awaitable[bool]], timeout_seconds: float
) -> None:
    """Call `probe` until it returns True. Raises StartFailed if the process ends before, or after
    the time-out.
    """
    deadline = time.monotonic() + timeout_seconds
    while not await probe():
        if process.returncode is not None:
            raise StartFailed(process.name, f"ended with status {process.returncode}", process.tail())
        if time.monotonic() > deadline:
            raise StartFailed(process.name, f"not ready after {timeout_seconds:g} s", process.tail())
        await asyncio.sleep(_PROBE_SECONDS)


async def _until(condition: Callable[[], bool], timeout_seconds: float = math.inf) -> None:
    deadline = time.monotonic() + timeout_seconds
    while (
        True
        # polled, so that a process belongs to no event loop: tests and commands end it in another
        # one
    ):
        if condition() or time.monotonic() > deadline:
            return
        await asyncio.sleep(_POLL_SECONDS)


def _tie(command: Command) -> tuple[str, ...]:
    # Isolated and without site-packages, the wrapper is gone within about 15 ms. It passes the
    # environment on.
    interpreter = (sys.executable, "-IS", tied.__file__)
    return (*interpreter, str(os.getpid()), str(int(command.orphan_signal)), command.user or "-", "--")
