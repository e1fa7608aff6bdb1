"""The transport to an MCP server that is a process with its own process group and environment.

The process ends with the run.
"""

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from spawnmesh_core.cancellation import shield_until_done
from spawnmesh_runtime.workarounds.subprocess_pipes import close_pipes

from spawnmesh_runner.clients.mcp.stderr_tail import StderrTail
from spawnmesh_runner.clients.mcp.stdio_messages import Incoming, forward_messages
from spawnmesh_runner.clients.threads import finish_in_thread

log = structlog.get_logger()

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EXIT_SECONDS = 1.0  # The wait after its input is closed, and again after SIGTERM.
_REAP_SECONDS = 2.0
_POLL_SECONDS = 0.01

Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def open_stdio(
    command: str,
    args: tuple[str, ...],
    env: Mapping[str, str],
    workspace: Path,
    home: Path,
    stderr: StderrTail,
    on_silence: Callable[[], object],
    start_with: Callable[[Sequence[str]], list[str]],
    watch: Callable[[int], Awaitable[object]] | None = None,
    on_excess: Callable[[str], object] | None = None,
) -> AsyncIterator[Streams]:
    """Run the command in `workspace` and open streams to its standard input and output.

    The process sees `env`, a usual `PATH` and `home`, in the workspace, for its own files, and
    nothing of this process. `start_with` makes the command line that starts it, in a sandbox or
    without one. `stderr` keeps the end of its standard error. When the block ends, the process and
    its group have ended, and in a sandbox every process that it started. If this process is killed,
    so is the command. `on_silence` is called when its output ends, or is no longer read because it
    is above a bound; before that, `on_excess` is called with the reason. `watch` is called with the
    id of the process, which is killed when it returns. Raises OSError if it cannot be started.
    """
    own = {"PATH": _PATH, "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}
    # The agent writes to the command's directory: Python must not import modules from there.
    seen = {**own, "PYTHONSAFEPATH": "1", **env}
    program = shutil.which(command, path=seen["PATH"])
    if program is None or not os.path.isabs(program):
        raise FileNotFoundError("no such command")
    await finish_in_thread(partial(_make_home, workspace, home))
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    argv = start_with((program, *args))
    started: list[Process] = []

    async def start() -> None:
        started.append(
            await asyncio.create_subprocess_exec(
                *argv,
                env=seen,
                cwd=workspace,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
            )
        )

    try:
        await shield_until_done(start())  # A task that is cancelled here still has to end the process.
        async with asyncio.TaskGroup() as group:
            pumps = [
                group.create_task(_read(started[0], incoming, on_silence, on_excess)),
                group.create_task(_write(started[0], outgoing, incoming)),
                group.create_task(_follow(started[0], stderr)),
            ]
            if watch is not None:
                pumps.append(group.create_task(_end_after(watch, started[0])))
            try:
                yield read_stream, write_stream
            finally:
                for pump in pumps:
                    pump.cancel()
    finally:
        for stream in (incoming, read_stream, write_stream, outgoing):
            stream.close()
        for process in started:
            await shield_until_done(_terminate(process, stderr))


def _make_home(workspace: Path, home: Path) -> None:
    """Create the directory `home` in the workspace. Symlinks on the way, which a server may have
    made, are refused.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(workspace, flags)
    try:
        for name in home.relative_to(workspace).parts:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=fd)
            below = os.open(name, flags, dir_fd=fd)
            os.close(fd)
            fd = below
    finally:
        os.close(fd)


async def _read(
    process: Process,
    incoming: Incoming,
    on_silence: Callable[[], object],
    on_excess: Callable[[str], object] | None,
) -> None:
    """Forward the process's messages, one a line.

    Stop when its output ends or is above a bound.
    """
    assert process.stdout is not None
    with incoming:
        try:
            excess = await forward_messages(process.stdout, incoming)
            if excess and on_excess is not None:
                on_excess(excess)
        finally:
            on_silence()  # Report it before the callers learn that no answer will come.


async def _write(process: Process, outgoing: Outgoing, incoming: Incoming) -> None:
    """Write messages to the process. A process that no longer reads has ended."""
    assert process.stdin is not None
    try:
        with outgoing:
            async for message in outgoing:
                process.stdin.write(
                    message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                )
                await process.stdin.drain()
    except (ConnectionError, RuntimeError):
        incoming.close()


async def _follow(process: Process, stderr: StderrTail) -> None:
    assert process.stderr is not None
    await stderr.follow(process.stderr)


async def _end_after(watch: Callable[[int], Awaitable[object]], process: Process) -> None:
    await watch(process.pid)
    _signal(process, signal.SIGKILL)


async def _terminate(process: Process, stderr: StderrTail) -> None:
    """Close the process's input, send SIGTERM, then SIGKILL, and kill the rest of its group."""
    assert process.stdin is not None
    with suppress(OSError, RuntimeError):
        process.stdin.close()
    if not await _has_ended(process, _EXIT_SECONDS):
        _signal(process, signal.SIGTERM)
        await _has_ended(process, _EXIT_SECONDS)
    _signal(process, signal.SIGKILL)
    if not await _has_ended(process, _REAP_SECONDS):
        log.warning("mcp_server_not_ended", pid=process.pid)
    assert process.stderr is not None
    await stderr.drain(process.stderr)
    # Another process that holds the output open would keep the pipe, and nothing reads it any more.
    close_pipes(process)


async def _has_ended(process: Process, within_seconds: float) -> bool:
    """Return True if the process ends in time.

    Its own `wait` blocks while any process holds its output open.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            while process.returncode is None:  # noqa: ASYNC110 - nothing signals the end
                await asyncio.sleep(_POLL_SECONDS)
    return process.returncode is not None


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
