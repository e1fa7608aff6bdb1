"""A process that dies between two steps: around each transaction and each call of a service."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from spawnmesh_postgres.long_running.operations import Operations
from spawnmesh_session.app import Components
from spawnmesh_session.operations.operation_types import OPERATION_TYPES
from spawnmesh_session.operations.tenant_purge import TenantPurge
from spawnmesh_session.rpc.dependencies import Dependencies

COMMITTED, ANSWERED = "committed", "answered"


class Crash(BaseException):
    """The end of the process. No handler catches it, as none catches SIGKILL."""


class Steps:
    """A counter that crashes at the n-th step and at every later one."""

    def __init__(self, crash_at: int) -> None:
        self.crash_at = crash_at
        self.count = 0

    def step(self, name: str) -> None:
        if self.counts(name):
            self.count += 1
        if self.count >= self.crash_at:
            raise Crash

    def counts(self, name: str) -> bool:
        return True


class Effects(Steps):
    """A counter that crashes after the n-th commit or answer of a service, and at every later step.

    This finds every state that a crash can leave: PostgreSQL rolls back an open transaction, so
    until the next commit or answer the state is the same.
    """

    def counts(self, name: str) -> bool:
        return name in (COMMITTED, ANSWERED)


class CrashingDatabase:
    """A database in which each transaction is three steps."""

    def __init__(self, database: Any, steps: Steps) -> None:
        self.database = database
        self.steps = steps

    def transaction(self, tenant_id: str) -> AbstractAsyncContextManager[Any]:
        return self._steps(self.database.transaction(tenant_id))

    def pipelined(self, tenant_id: str) -> AbstractAsyncContextManager[Any]:
        return self._steps(self.database.pipelined(tenant_id))

    @asynccontextmanager
    async def _steps(self, transaction: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        self.steps.step("begin")
        async with transaction as connection:
            yield connection
            self.steps.step("commit")
        self.steps.step(COMMITTED)


class CrashingPeer:
    """A client of a service in which each call is two steps."""

    def __init__(self, peer: Any, steps: Steps) -> None:
        self.peer = peer
        self.steps = steps

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.peer, name)

        async def call(*arguments: Any, **more: Any) -> Any:
            self.steps.step("call")
            answer = await method(*arguments, **more)
            self.steps.step(ANSWERED)
            return answer

        return call


class CrashingParticipant(CrashingPeer):
    """A participant in which each call is two steps."""

    @property
    def service(self) -> str:
        return str(self.peer.service)


@dataclass(frozen=True, slots=True)
class Crashing:
    """The operations that end lives and change tenants, in a process that crashes."""

    deps: Dependencies
    purge: TenantPurge


def crashing(components: Components, steps: Steps) -> Crashing:
    """Build the operations of the components on a database and on clients that crash."""
    database: Any = CrashingDatabase(components.database, steps)
    sets: Any = CrashingPeer(components.sets, steps)
    transcripts: Any = CrashingPeer(components.transcripts, steps)
    participants: Any = tuple(CrashingParticipant(one, steps) for one in components.participants)
    undo = replace(components.undo, database=database, sets=sets, transcripts=transcripts)
    killer = replace(components.killer, database=database, undo=undo, transcripts=transcripts)
    unused: Any = None
    deps = Dependencies(
        database=database,
        listener=components.listener,
        spawn_saga=unused,
        finalize_saga=unused,
        claimer=unused,
        terminator=components.terminator,
        killer=killer,
        interrupter=unused,
        publisher=unused,
        requester=unused,
        decider=unused,
        budgets=unused,
        budget_waits=unused,
        model_calls=unused,
        scheduled=unused,
        sender=unused,
        run_changes=unused,
        deleter=replace(
            components.deleter, database=database, killer=killer, sets=sets, transcripts=transcripts
        ),
        settings_push=replace(components.settings_push, database=database, participants=participants),
        participants=participants,
        metrics=components.metrics,
        run_tokens=unused,
        lease_ttl=timedelta(minutes=1),
        revocations=unused,
        call_limits=unused,
        tenant_classes=unused,
        max_token_lifetime=timedelta(days=1),
        watch_limit=unused,
        operations=Operations("session", database, components.listener, OPERATION_TYPES),
        watch_source=unused,
    )
    return Crashing(
        deps, replace(components.purge, database=database, killer=killer, participants=participants)
    )
