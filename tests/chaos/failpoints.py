"""Failpoints around the seams of the session service: each transaction is three steps, each call of a peer two.

A transaction has the name of the function that has it, a call that of the peer's method. What is new in a saga is covered without anybody
registering it. A folder outlives the process: in it are a line for each step that was reached, and the plan of what happens at which.
"""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import psycopg
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_session.app import Parts

IN_TRANSACTION = ("begin", "commit", "committed")
IN_CALL = ("call", "answered")


class Fault(StrEnum):
    """What happens at a step. A failure behind `committed` or `answered` is an answer lost: what was asked for has been done."""

    KILL = "kill"
    PAUSE = "pause"
    FAIL = "fail"
    CUT = "cut"
    """It fails, and everything behind it: the process reaches nobody any more."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A step, and the backends of PostgreSQL that hold a transaction of the process at that time."""

    step: str
    backends: list[int]


class Failpoints:
    """Both sides of the folder: the process under test reaches steps, and the test plans and reads."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "reached"
        self._plan = folder / "plan"
        self._backends: list[int] = []

    def plan(self, step: str = "", fault: Fault = Fault.FAIL) -> None:
        """Forgets what was reached; the fault happens once the step is, to whichever process that is."""
        self._log.write_text("")
        self._plan.write_text(json.dumps({step: fault}))

    def reached(self) -> list[Reached]:
        """Every step since the plan, in the order in which they were reached."""
        return [Reached(**json.loads(line)) for line in self._log.read_text().splitlines()]

    def steps(self) -> list[str]:
        """Their names."""
        return [reached.step for reached in self.reached()]

    def begin(self, name: str) -> str:
        """The name of a transaction or a call, with its number where the name was there before."""
        begun = [step for step in self.steps() if step.endswith((": begin", ": call"))]
        before = sum(step.startswith((f"{name}:", f"{name} (")) for step in begun)
        return f"{name} ({before + 1})" if before else name

    def reach(self, step: str) -> bool:
        """Tells the step, and dies or stops at it as planned; True where what is done there is to fail."""
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

    def transaction_of(self, *arguments: Any) -> AbstractAsyncContextManager[Any]:
        return self._steps(_caller(), self.database.transaction_of(*arguments))

    async def call(self, *arguments: Any) -> Any:
        transaction = self.failpoints.begin(_caller())
        self._reach(f"{transaction}: call")
        rows = await self.database.call(*arguments)
        self._reach(f"{transaction}: answered")
        return rows

    @asynccontextmanager
    async def _steps(self, name: str, transaction: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        own = self.failpoints.begin(name)
        begin, commit, committed = (f"{own}: {part}" for part in IN_TRANSACTION)
        self._reach(begin)
        async with transaction as opened:
            connection = opened[0] if isinstance(opened, tuple) else opened
            with self.failpoints.holding(connection.info.backend_pid):
                yield opened
                self._reach(commit)
        self._reach(committed)

    def _reach(self, step: str) -> None:
        if self.failpoints.reach(step):
            raise psycopg.OperationalError("the connection was lost")


def _caller() -> str:
    """Whoever called the one who asks."""
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
            self._reach(asked)
            try:
                answer = await method(*arguments, **more)
            except MeshError:
                self._reach(answered)
                raise
            self._reach(answered)
            return answer

        return call

    def _reach(self, step: str) -> None:
        if self.failpoints.reach(step):
            raise unavailable(self.peer.peer.name)


def failing(parts: Parts, failpoints: Failpoints) -> Parts:
    """The same parts, of which both sagas have steps."""
    database: Any = FailingDatabase(parts.database, failpoints)
    sets: Any = FailingPeer(parts.sets, failpoints)
    transcripts: Any = FailingPeer(parts.transcripts, failpoints)
    hooks: Any = FailingPeer(parts.hooks, failpoints)
    around = {"database": database, "sets": sets, "transcripts": transcripts}
    undo = replace(parts.undo, **around)
    spawn = replace(parts.spawn, **around, hooks=hooks, undo=undo)
    return replace(parts, database=database, transcripts=transcripts, hooks=hooks, undo=undo, spawn=spawn)
