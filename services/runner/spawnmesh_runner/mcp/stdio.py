"""A server that is a process beside the run: in a group of its own, with an environment of its own, and gone with the run."""

import asyncio
import json
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError
from spawnmesh_core.cancellation import uninterrupted

from spawnmesh_runner.in_thread import finish_in_thread
from spawnmesh_runner.mcp.config import MAX_MESSAGE_BYTES

log = structlog.get_logger()

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LAUNCH = str(Path(__file__).with_name("launch.py"))
_LEAVE_SECONDS = 1.0  # After its input was closed, and again after SIGTERM.
_REAP_SECONDS = 2.0
_LOOK_SECONDS = 0.01
_CHUNK_BYTES = 64 * 1024

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def run_server(
    command: str,
    args: tuple[str, ...],
    env: Mapping[str, str],
    workspace: Path,
    home: Path,
    on_silence: Callable[[], object],
) -> AsyncIterator[Streams]:
    """Runs the command in `workspace`, and speaks with it over its standard streams; what it writes to standard error is dropped.

    It sees `env`, a usual `PATH`, `home` for its own files, and nothing of this process. Whichever way the block ends, the process and its group
    have ended with it; should this very process be killed, so is the command. `on_silence` is called when it has said its last. Raises OSError
    where it cannot be started.
    """
    own = {"PATH": _PATH, "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}
    # The agent writes where the command is run: Python is not to look there for what it imports.
    seen = {**own, "PYTHONSAFEPATH": "1", **env}
    program = shutil.which(command, path=seen["PATH"])
    if program is None or not os.path.isabs(program):
        raise FileNotFoundError("no such command")
    await finish_in_thread(lambda: home.mkdir(mode=0o700, parents=True, exist_ok=True))
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    argv = (sys.executable, "-I", "-S", _LAUNCH, str(os.getpid()), program, *args)
    started: list[Process] = []

    async def start() -> None:
        started.append(
            await asyncio.create_subprocess_exec(
                *argv, env=seen, cwd=workspace, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
            )
        )

    try:
        await uninterrupted(start())  # Whoever is cancelled meanwhile has a process to end all the same.
        async with asyncio.TaskGroup() as group:
            pumps = [
                group.create_task(_listen(started[0], incoming, on_silence)),
                group.create_task(_tell(started[0], outgoing, incoming)),
            ]
            try:
                yield read_stream, write_stream
            finally:
                for pump in pumps:
                    pump.cancel()
    finally:
        for stream in (incoming, read_stream, write_stream, outgoing):
            stream.close()
        for process in started:
            await uninterrupted(_end(process))


async def _listen(process: Process, incoming: Incoming, on_silence: Callable[[], object]) -> None:
    """Passes on what the process says, a message a line, until it stops or says too much at once."""
    with incoming:
        try:
            await _listen_to_lines(process, incoming)
        finally:
            on_silence()  # Before whoever waits for an answer hears that none will come.


async def _listen_to_lines(process: Process, incoming: Incoming) -> None:
    assert process.stdout is not None
    held = bytearray()
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        while chunk := await process.stdout.read(_CHUNK_BYTES):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                held += line
                if (message := _parsed(bytes(held))) is not None:
                    await incoming.send(message)
                held.clear()
            held += rest
            if len(held) > MAX_MESSAGE_BYTES:
                log.warning("mcp server says too much at once", max_bytes=MAX_MESSAGE_BYTES)
                return


def _parsed(line: bytes) -> SessionMessage | None:
    """The message of a line; for an answer that is none an error in its place; None for whatever else a program may print."""
    with suppress(ValidationError):
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    with suppress(ValueError, RecursionError):
        request_id = _id_of(line)
        if request_id is not None:
            problem = ErrorData(code=PARSE_ERROR, message="malformed answer")
            return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=problem))
    return None


def _id_of(line: bytes) -> int | str | None:
    value = json.loads(line)
    request_id = value.get("id") if isinstance(value, dict) and "method" not in value else None
    return request_id if isinstance(request_id, int | str) else None


async def _tell(process: Process, outgoing: Outgoing, incoming: Incoming) -> None:
    """Passes on what is said to the process. One that no longer listens has left."""
    assert process.stdin is not None
    try:
        with outgoing:
            async for message in outgoing:
                process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await process.stdin.drain()
    except (ConnectionError, RuntimeError):
        incoming.close()


async def _end(process: Process) -> None:
    """Asks the process to go, ever more urgently, and takes whoever is left of its group with it."""
    assert process.stdin is not None
    with suppress(OSError, RuntimeError):
        process.stdin.close()
    if not await _has_ended(process, _LEAVE_SECONDS):
        _signal(process, signal.SIGTERM)
        await _has_ended(process, _LEAVE_SECONDS)
    _signal(process, signal.SIGKILL)
    if not await _has_ended(process, _REAP_SECONDS):
        log.warning("mcp server does not end", pid=process.pid)
    # What else holds its output open would keep the pipe, and nobody reads it any more.
    process._transport.close()  # type: ignore[attr-defined]


async def _has_ended(process: Process, within_seconds: float) -> bool:
    """Whether it did in time. Its own `wait` goes on for as long as anybody holds its output open."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            while process.returncode is None:  # noqa: ASYNC110 - the process tells nobody
                await asyncio.sleep(_LOOK_SECONDS)
    return process.returncode is not None


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
