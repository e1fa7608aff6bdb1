"""A process that dies between any two of its steps: before, in and after each transaction, before and after each call of a peer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from spawnmesh_session.app import Parts
from spawnmesh_session.operations.archive import Archive
from spawnmesh_session.operations.delete import Delete
from spawnmesh_session.operations.kill import Kill
from spawnmesh_session.operations.tenant_deletion import TenantDeletion
from spawnmesh_session.operations.tenants import Tenants


class Crash(BaseException):
    """Nothing catches it, as nothing catches a kill."""


class Steps:
    """Crashes at the n-th step, and at every one behind it: a dead process does nothing more."""

    def __init__(self, crash_at: int) -> None:
        self.crash_at = crash_at
        self.count = 0

    def reach(self) -> None:
        self.count += 1
        if self.count >= self.crash_at:
            raise Crash


class CrashingDatabase:
    """A database whose every transaction is three steps."""

    def __init__(self, database: Any, steps: Steps) -> None:
        self.database = database
        self.steps = steps

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Any]:
        self.steps.reach()
        async with self.database.transaction(tenant_id) as connection:
            yield connection
            self.steps.reach()
        self.steps.reach()


class CrashingPeer:
    """A peer of which every call is two steps."""

    def __init__(self, peer: Any, steps: Steps) -> None:
        self.peer = peer
        self.steps = steps

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.peer, name)

        async def call(*arguments: Any, **more: Any) -> Any:
            self.steps.reach()
            answer = await method(*arguments, **more)
            self.steps.reach()
            return answer

        return call


@dataclass(frozen=True, slots=True)
class Crashing:
    """What ends lives, and what changes tenants, in a process that will crash."""

    archive: Archive
    kill: Kill
    delete: Delete
    deletion: TenantDeletion
    tenants: Tenants


def crashing(parts: Parts, steps: Steps) -> Crashing:
    """The parts' own operations on a database and peers that crash."""
    database: Any = CrashingDatabase(parts.database, steps)
    sets: Any = CrashingPeer(parts.sets, steps)
    transcripts: Any = CrashingPeer(parts.transcripts, steps)
    hooks: Any = CrashingPeer(parts.hooks, steps)
    router: Any = CrashingPeer(parts.push.model_router, steps)
    push = replace(parts.push, database=database, sets=sets, transcripts=transcripts, hooks=hooks, model_router=router)
    undo = replace(parts.undo, database=database, sets=sets, transcripts=transcripts)
    kill = replace(parts.kill, database=database, undo=undo, transcripts=transcripts)
    return Crashing(
        Archive(database, parts.endings),
        kill,
        replace(parts.delete, database=database, kill=kill, sets=sets, transcripts=transcripts),
        replace(
            parts.deletion,
            database=database,
            kill=kill,
            sets=sets,
            transcripts=transcripts,
            hooks=hooks,
            model_router=router,
        ),
        Tenants(database, push),
    )
