"""Failpoints at the seams of the session service: three steps of a transaction, two of a call.

A transaction has the name of the function that opens it; a call has that of the client's method.
So a new step in a saga needs no registration. A folder outlives the process: it has a line for each
step, and the plan of faults.
"""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import psycopg
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_session.app import Components
from spawnmesh_session.operations.spawns_in_progress import Spawn, SpawnsInProgress

IN_TRANSACTION = ("begin", "commit", "committed")
IN_CALL = ("call", "answered")


class Fault(StrEnum):
    """The effect at a step. After `committed` or `answered`, a failure is a lost answer."""

    KILL = "kill"
    PAUSE = "pause"
    FAIL = "fail"
    CUT = "cut"
    """The step and all later steps fail: the process reaches no other process."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A step, and the PostgreSQL backends with an open transaction of the process."""

    step: str
    backends: list[int]


class Failpoints:
    """Both sides of the folder: the process under test logs steps, the test plans and reads."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "reached"
        self._plan = folder / "plan"
        self._in_progress = folder / "in progress"
        self._backends: list[int] = []

    def plan(self, step: str = "", fault: Fault = Fault.FAIL) -> None:
        """Forget the logged steps, and plan the fault for the first process at the step."""
        self._log.write_text("")
        self._plan.write_text(json.dumps({step: fault}))

    def reached(self) -> list[Reached]:
        """Every step since the plan, in the order in which they were reached."""
        return [Reached(**json.loads(line)) for line in self._log.read_text().splitlines()]

    def steps(self) -> list[str]:
        """Their names."""
        return [reached.step for reached in self.reached()]

    def in_progress(self) -> int:
        """The number of spawns and undos that the process works on, with a caller or without."""
        return int(self._in_progress.read_text())

    def set_in_progress(self, count: int) -> None:
        self._in_progress.with_suffix(".new").write_text(str(count))
        self._in_progress.with_suffix(".new").replace(self._in_progress)

    def begin(self, name: str) -> str:
        """The name of a transaction or a call, with its number where the name was there before."""
        begun = [step for step in self.steps() if step.endswith((": begin", ": call"))]
        before = sum(step.startswith((f"{name}:", f"{name} (")) for step in begun)
        return f"{name} ({before + 1})" if before else name

    def step(self, step: str) -> bool:
        """Log the step and die or stop as planned; return whether the step must fail."""
        plan = json.loads(self._plan.read_text())
        with self._log.open("a") as log:
            log.write(json.dumps({"step": step, "backends": self._backends}) + "\n")
        fault = plan.get(step)
        if fault == Fault.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == Fault.PAUSE:
            os.kill(os.getpid(), signal.SIGSTOP)
        cut = [name for name, planned in plan.items() if planned == Fault.CUT]
        return fault == Fault.FAIL or any(step in cut for step in self.steps())

    @contextmanager
    def holding(self, backend: int) -> Iterator[None]:
        """A transaction is open at the backend."""
        self._backends.append(backend)
        try:
            yield
        finally:
            self._backends.remove(backend)


class FailingDatabase:
    """A database whose transactions have steps."""

    def __init__(self, database: Any, failpoints: Failpoints) -> None:
        self.database = database
        self.failpoints = failpoints

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)

    def transaction(self, tenant_id: str) -> AbstractAsyncContextManager[Any]:
        return self._steps(_caller(), self.database.transaction(tenant_id))

    def pipelined(self, tenant_id: str) -> AbstractAsyncContextManager[Any]:
        return self._steps(_caller(), self.database.pipelined(tenant_id))

    def transaction_with_statements(self, *arguments: Any) -> AbstractAsyncContextManager[Any]:
        return self._steps(_caller(), self.database.transaction_with_statements(*arguments))

    @asynccontextmanager
    async def _steps(self, name: str, transaction: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        own = self.failpoints.begin(name)
        begin, commit, committed = (f"{own}: {part}" for part in IN_TRANSACTION)
        self._step(begin)
        async with transaction as connection:
            with self.failpoints.holding(connection.info.backend_pid):
                yield connection
                self._step(commit)
        self._step(committed)

    def _step(self, step: str) -> None:
        if self.failpoints.step(step):
            raise psycopg.OperationalError("the connection was lost")


def _caller() -> str:
    """Return the name of the caller's caller."""
    return sys._getframe(2).f_code.co_qualname


class FailingPeer:
    """A peer whose calls have steps. A refusal is an answer, too."""

    def __init__(self, peer: Any, failpoints: Failpoints) -> None:
        self.peer = peer
        self.failpoints = failpoints

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.peer, name)

        async def call(*arguments: Any, **more: Any) -> Any:
            own = self.failpoints.begin(f"{type(self.peer).__name__}.{name}")
            asked, answered = (f"{own}: {part}" for part in IN_CALL)
            self._step(asked)
            try:
                answer = await method(*arguments, **more)
            except MeshError:
                self._step(answered)
                raise
            self._step(answered)
            return answer

        return call

    def _step(self, step: str) -> None:
        if self.failpoints.step(step):
            raise unavailable(self.peer.peer.name)


class CountedSpawns:
    """The spawns in progress, whose number the test can read."""

    def __init__(self, spawns: SpawnsInProgress, failpoints: Failpoints) -> None:
        self.spawns = spawns
        self.failpoints = failpoints
        self._count = 0
        failpoints.set_in_progress(0)

    def start(self, spawn: Coroutine[Any, Any, Any]) -> Spawn:
        return self.spawns.start(self._counted(spawn))

    def undo_later(self, undo: Coroutine[Any, Any, None]) -> None:
        self.spawns.undo_later(self._counted(undo))

    async def wait_for(self, spawn: Spawn) -> Any:
        return await self.spawns.wait_for(spawn)

    def _counted(self, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        self._add(1)

        async def counted() -> Any:
            try:
                return await work
            finally:
                self._add(-1)

        return counted()

    def _add(self, change: int) -> None:
        self._count += change
        self.failpoints.set_in_progress(self._count)


def failing(components: Components, failpoints: Failpoints) -> Components:
    """Return the components with steps in both sagas."""
    database: Any = FailingDatabase(components.database, failpoints)
    sets: Any = FailingPeer(components.sets, failpoints)
    transcripts: Any = FailingPeer(components.transcripts, failpoints)
    hooks: Any = FailingPeer(components.hooks, failpoints)
    around = {"database": database, "sets": sets, "transcripts": transcripts}
    in_progress: Any = CountedSpawns(components.spawn_saga.in_progress, failpoints)
    undo = replace(components.undo, **around)
    saga = replace(components.spawn_saga, **around, hooks=hooks, undo=undo, in_progress=in_progress)
    return replace(
        components, database=database, transcripts=transcripts, hooks=hooks, undo=undo, spawn_saga=saga
    )
