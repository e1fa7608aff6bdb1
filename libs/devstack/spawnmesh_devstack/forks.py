"""Start processes as forks of one process that has imported their code.

The import takes each process of a mesh about a second, which is most of the time until it serves.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.fork_server import MESSAGE_BYTES
from spawnmesh_devstack.members import base_environment
from spawnmesh_devstack.processes import Command, Execute, execute

_POLL_SECONDS = 0.005


class ForkedChild:
    """A process that the server has forked."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None

    def poll(self) -> int | None:
        """Reap the process if it has ended, and return its exit code; None while it runs."""
        if self._code is None:
            self._code = self._server.call({"pid": self.pid})["code"]
        return self._code

    async def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        while (code := self.poll()) is None:  # noqa: ASYNC110 - only its parent, the server, is told of its end
            await asyncio.sleep(_POLL_SECONDS)
        return code


class ForkServer:
    """The client's side of `fork_server`. The first call waits until the code is imported."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._is_ready = False

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        streams: tuple[int, int, int],
        *,
        name: str = "",
        directory: Path | None = None,
        orphan_signal: Signals = SIGKILL,
    ) -> ForkedChild:
        """Start `-m MODULE …` or `SCRIPT …` with open files as its streams.

        They stay open here. `ps -o comm` shows the first 15 bytes of the name.
        """
        program = {
            "argv": argv,
            "env": dict(env),
            "name": name,
            "directory": str((directory or Path()).absolute()),
            "orphan_signal": int(orphan_signal),
        }
        return ForkedChild(self, self.call(program, *streams)["pid"])

    def execute(self, command: Command, log: int) -> ForkedChild | subprocess.Popen[bytes]:
        """Start a member of the mesh; one that runs a module with this interpreter is a fork."""
        if command.argv[:2] != (sys.executable, "-m") or command.user is not None or command.env is None:
            return execute(command, log)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            return self.start(
                command.argv[1:], command.env, (nothing, log, log),
                name=command.name, directory=command.working_directory, orphan_signal=command.orphan_signal,
            )  # fmt: skip
        finally:
            os.close(nothing)

    def call(self, request: Mapping[str, Any], *files: int) -> dict[str, Any]:
        """Send a request, and return its answer. Raises StackError if the server has ended."""
        try:
            if not self._is_ready:
                self._receive()
                self._is_ready = True
            socket.send_fds(self._link, [json.dumps(request).encode()], files)
            return self._receive()
        except OSError as error:
            raise _gone() from error

    def _receive(self) -> dict[str, Any]:
        if not (message := self._link.recv(MESSAGE_BYTES)):
            raise _gone()
        answer: dict[str, Any] = json.loads(message)
        return answer


def _gone() -> StackError:
    return StackError("the process that starts the others has ended")


@contextmanager
def open_fork_server(modules: Sequence[str] = ()) -> Iterator[ForkServer]:
    """Run the server for the block. It imports the modules too. Linux only."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - the interpreter that runs this
            [sys.executable, "-m", "spawnmesh_devstack.fork_server", str(theirs.fileno()), *modules],
            env=base_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
    try:
        with ours:
            yield ForkServer(ours)
    finally:
        process.terminate()  # It may still be importing.
        process.wait()


@contextmanager
def open_forks() -> Iterator[Execute]:
    """Yield a function that starts processes as forks; on other systems than Linux, one that starts
    each by itself.
    """
    if sys.platform != "linux":
        yield execute
        return
    with open_fork_server() as server:
        yield server.execute
