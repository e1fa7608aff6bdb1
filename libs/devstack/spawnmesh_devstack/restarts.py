"""Start each process of a mesh again that ends by itself, and report its end and its return."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from signal import Signals

import psycopg

from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.processes import ChildProcess
from spawnmesh_devstack.stack import Stack

_LOOK_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 30.0
# A process that runs for longer has recovered: its next end is a new failure.
_RECOVERED_SECONDS = 60.0

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Part:
    """Processes that are started again together."""

    processes: Callable[[], Sequence[ChildProcess]]
    restart: Callable[[], Awaitable[object]]


async def restart_ended(stack: Stack, report: Report) -> None:
    """Watch every process of the stack until cancelled.

    The first restart happens at once. If the process does not stay up, the pause before the next
    one doubles from one second to half a minute.
    """
    async with asyncio.TaskGroup() as group:
        for part in _parts(stack):
            group.create_task(_keep_up(part, report))


def _parts(stack: Stack) -> Iterator[_Part]:
    yield _Part(lambda: [stack.postgres.process], partial(stack.restart_storage, stack.postgres))
    yield _Part(lambda: stack.s3.processes, partial(stack.restart_storage, stack.s3))
    for name in stack.processes:
        yield _Part(partial(_process, stack, name), partial(stack.restart, name))


def _process(stack: Stack, name: str) -> Sequence[ChildProcess]:
    return [stack.processes[name]]


async def _keep_up(part: _Part, report: Report) -> None:
    pause, up_since = 0.0, 0.0
    while True:
        ended = await _ended(part)
        if time.monotonic() - up_since > _RECOVERED_SECONDS:
            pause = 0.0
        when = f"in {pause:g} s" if pause else "now"
        report(f"{ended.name} {_ending(ended)}; it is started again {when}; its log is {ended.log_file}")
        while True:
            await asyncio.sleep(pause)
            pause = min(max(1.0, pause * 2), _LONGEST_PAUSE_SECONDS)
            try:
                await part.restart()
            except (StackError, psycopg.OperationalError) as error:
                report(f"{ended.name} does not come back: {_line(error)}; next attempt in {pause:g} s")
            else:
                break
        up_since = time.monotonic()
        report(f"{ended.name} is back")


async def _ended(part: _Part) -> ChildProcess:
    """Wait until one of the processes has ended, and return it."""
    while True:
        for process in part.processes():
            if process.returncode is not None:
                return process
        await asyncio.sleep(_LOOK_SECONDS)


def _ending(process: ChildProcess) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"was killed by {Signals(-code).name}"
    return f"ended with status {code}"


def _line(error: Exception) -> str:
    if isinstance(error, psycopg.Error):
        return "PostgreSQL does not answer"
    return str(error).partition("\n")[0]
