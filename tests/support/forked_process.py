"""A fork whose output is read, with the methods of `asyncio.subprocess.Process`."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

from spawnmesh_devstack.forks import ForkedChild, ForkServer

_LOG_BYTES = 64 * 1024 * 1024  # More than a process writes here: it stops if its output is not read.


class ForkedProcess:
    """A started fork. Its errors are part of its output."""

    def __init__(self, fork: ForkedChild, stdout: asyncio.StreamReader) -> None:
        self.pid = fork.pid
        self.stdout = stdout
        self._fork = fork

    @property
    def returncode(self) -> int | None:
        """None while it runs; -N after a death by signal N."""
        return self._fork.poll()

    def send_signal(self, signal: Signals) -> None:
        """Send the signal, unless the process has ended."""
        if self.returncode is None:
            os.kill(self.pid, signal)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(SIGKILL)

    async def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        return await self._fork.wait()

    async def communicate(self) -> tuple[bytes, bytes]:
        """Wait for its end, and return the rest of its output, and no errors."""
        printed = await self.stdout.read()
        await self.wait()
        return printed, b""


async def start_forked(
    server: ForkServer, argv: Sequence[str], env: Mapping[str, str], directory: Path | None = None
) -> ForkedProcess:
    """Start `-m MODULE …` or `SCRIPT …` without input."""
    reading, writing = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        fork = server.start(argv, env, (nothing, writing, writing), directory=directory)
    finally:
        os.close(nothing)
        os.close(writing)
    stdout = asyncio.StreamReader(limit=_LOG_BYTES)
    # The loop closes the pipe at the end of the output.
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(reading, "rb", buffering=0)
    )
    return ForkedProcess(fork, stdout)
