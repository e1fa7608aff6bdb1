"""Apply the plan to the mesh, and undo each fault when its time is over."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.processes import ChildProcess

from tests.chaos.random_faults.field import Field
from tests.chaos.random_faults.plan import S3, Fault, FaultKind, group_of
from tests.support.links import Link

Report = Callable[[str], None]

_CUT_AGAIN_SECONDS = 1.0
_START_SECONDS = 300.0  # Longer than anything else is away.
_LOOK_SECONDS = 0.5
_BALLAST = "ballast"


@dataclass(frozen=True, slots=True)
class AppliedFault:
    """A fault, and when it began and ended, in seconds of the history."""

    fault: Fault
    start: float
    end: float


class Faults:
    """Break parts of the mesh, and keep the rest running as an orchestrator does: a process that
    ends by itself is started again, and `ended` has its name and status. `watched` has the names of
    all processes that were looked at.

    `now` is the clock of `applied`.
    """

    def __init__(self, field: Field, report: Report, now: Callable[[], float]) -> None:
        self.ended: list[str] = []
        self.watched: set[str] = set()
        self.applied: list[AppliedFault] = []
        self._now = now
        self._field = field
        self._report = report
        self._down: set[str] = set()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def follow(self, plan: list[Fault]) -> None:
        """Apply each fault at its time. Return when all are undone."""
        loop = asyncio.get_running_loop()
        zero = loop.time()
        async with asyncio.TaskGroup() as faults:
            for fault in plan:
                await asyncio.sleep(zero + fault.start_seconds - loop.time())
                self._report(f"{fault.start_seconds:6.1f} s  {fault}")
                faults.create_task(self._apply(fault))

    async def keep_running(self) -> None:
        """Start processes that end by themselves. It never returns."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for name, process in list(self._field.stack.processes.items()):
                self.watched.add(name)
                if name not in self._down and process.returncode is not None:
                    self.ended.append(f"{name} (status {process.returncode})")
                    self._report(f"          {name} ended by itself with status {process.returncode}")
                    await self._start(name)

    async def restart(self, name: str) -> None:
        """Restart the process in order."""
        self._down.add(name)
        await self._field.stack.restart(name)
        self._down.discard(name)

    async def _apply(self, fault: Fault) -> None:
        # A restart takes time after the end of a fault, and the next fault waits for it.
        async with self._locks[group_of(fault.target)], self._active(fault):
            start = self._now()
            await asyncio.sleep(fault.seconds)
            self.applied.append(AppliedFault(fault, start, self._now()))

    @asynccontextmanager
    async def _active(self, fault: Fault) -> AsyncIterator[None]:
        stack = self._field.stack
        match fault.kind:
            case FaultKind.KILL | FaultKind.AWAY if fault.target in self._field.servers:
                server = self._field.servers[fault.target]
                await server.process.kill()
                yield
                await _insist(server.start)
            case FaultKind.AWAY if fault.target == S3:
                await stack.s3.stop()
                yield
                await _insist(self._start_s3)
            case FaultKind.KILL | FaultKind.AWAY:
                names = _processes(fault)
                self._down |= set(names)
                for name in names:
                    await stack.processes[name].kill()
                yield
                for name in names:
                    await self._start(name)
            case FaultKind.PAUSE | FaultKind.HANG:
                processes = [self._process(name) for name in _processes(fault)]
                for process in processes:
                    process.pause()
                yield
                for process in processes:
                    process.resume()
            case FaultKind.FULL:
                # In a thread: the links are in this process, and must not stand still.
                await asyncio.to_thread(_fill, self._field.disk)
                yield
                _empty(self._field.disk)
            case _:
                async with _disturbed(self._field.links[fault.target], fault):
                    yield

    async def _start(self, name: str) -> None:
        self._down.add(name)
        await _insist(lambda: self._field.stack.restart(name))
        self._down.discard(name)

    async def _start_s3(self) -> None:
        await self._field.stack.s3.stop()
        await self._field.stack.s3.start()

    def _process(self, target: str) -> ChildProcess:
        server = self._field.servers.get(target)
        return self._field.stack.processes[target] if server is None else server.process


def _processes(fault: Fault) -> list[str]:
    is_of_all = fault.kind in (FaultKind.AWAY, FaultKind.HANG)
    return [fault.target, f"{fault.target}-2"] if is_of_all else [fault.target]


async def _insist(start: Callable[[], Awaitable[object]]) -> None:
    """Start a process. It may end again while something else is away."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _START_SECONDS
    while True:
        try:
            await start()
            return
        except (StackError, psycopg.Error):
            if loop.time() > give_up:
                raise
            await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def _disturbed(link: Link, fault: Fault) -> AsyncIterator[None]:
    """Disturb the connections of the link for the block."""
    if fault.kind is FaultKind.CUT:
        cutting = asyncio.get_running_loop().create_task(_cut_repeatedly(link))
        try:
            yield
        finally:
            cutting.cancel()
            with suppress(asyncio.CancelledError):
                await cutting
        return
    if fault.kind is FaultKind.HOLD:
        link.hold()
    else:
        link.delay_seconds = fault.delay_seconds
    try:
        yield
    finally:
        link.heal()


async def _cut_repeatedly(link: Link) -> None:
    while True:
        link.cut()
        await asyncio.sleep(_CUT_AGAIN_SECONDS)


def _fill(disk: Path | None) -> None:
    """Leave no byte free."""
    if disk is None:
        return
    with suppress(OSError), (disk / _BALLAST).open("wb", buffering=0) as ballast:
        while ballast.write(bytes(1024 * 1024)):
            pass


def _empty(disk: Path | None) -> None:
    if disk is not None:
        (disk / _BALLAST).unlink(missing_ok=True)
