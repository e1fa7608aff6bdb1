"""Start processes and commands as forks of one process that has imported their code."""

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

from spawnmesh_devstack.members import base_environment
from spawnmesh_devstack.processes import Command, execute

from tests.support.fork_server import MESSAGE_BYTES

ROOT = Path(__file__).parents[2]
_POLL_SECONDS = 0.005


class Fork:
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
        while (code := self.poll()) is None:
            await asyncio.sleep(_POLL_SECONDS)
        return code


class ForkServer:
    """The client's side of `fork_server`."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        streams: tuple[int, int, int],
        *,
        directory: Path | None = None,
        orphan_signal: Signals = SIGKILL,
    ) -> Fork:
        """Start `-m MODULE …` or `SCRIPT …` with open files as its streams, which stay open here."""
        program = {
            "argv": argv,
            "env": dict(env),
            "directory": str((directory or Path()).absolute()),
            "orphan_signal": int(orphan_signal),
        }
        return Fork(self, self.call(program, *streams)["pid"])

    def execute(self, command: Command, log: int) -> Fork | subprocess.Popen[bytes]:
        """Start a member of the mesh; one that runs a module with this interpreter is a fork."""
        if command.argv[:2] != (sys.executable, "-m") or command.user is not None or command.env is None:
            return execute(command, log)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            return self.start(
                command.argv[1:], command.env, (nothing, log, log),
                directory=command.working_directory, orphan_signal=command.orphan_signal,
            )  # fmt: skip
        finally:
            os.close(nothing)

    def call(self, request: Mapping[str, Any], *files: int) -> dict[str, Any]:
        """Send a request, and return its answer."""
        socket.send_fds(self._link, [json.dumps(request).encode()], files)
        answer: dict[str, Any] = json.loads(self._link.recv(MESSAGE_BYTES))
        return answer


@contextmanager
def open_fork_server() -> Iterator[ForkServer]:
    """Run the server for the block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
                cwd=ROOT, env=base_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        assert ours.recv(MESSAGE_BYTES) == b"{}", "the fork server did not start"
        yield ForkServer(ours)
    process.wait()
