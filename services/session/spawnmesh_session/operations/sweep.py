"""What nobody is left to do: undoing spawns that were cut off, ending runs that no runner can finish."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from psycopg.rows import DictRow
from spawnmesh_postgres.database import EVERY_TENANT, Database
from spawnmesh_runtime.acting import acting_for

from spawnmesh_session.domain import Ending, RunState, SessionState, SpawnFailure
from spawnmesh_session.operations.endings import Endings, lock_run
from spawnmesh_session.operations.spawn import UNDO_RETRY, SpawnSaga
from spawnmesh_session.store import runs, sessions

_TIMED_OUT = Ending(
    state=RunState.TIMED_OUT, error_reason="RUN_TIMEOUT", error_message="the run took longer than its run_timeout"
)
_LOST = Ending(
    state=RunState.FAILED, error_reason="ATTEMPTS_EXHAUSTED", error_message="every runner that held the run was lost"
)
_CUT_OFF = SpawnFailure.at("deadline", "the spawn was cut off and undone; spawn again with a new request_id")
_UNDONE_AT_ONCE = 8  # A peer that is slow for one tenant's spawns must not hold up those of all others.


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs in the worker; several may run at once."""

    database: Database
    endings: Endings
    spawn: SpawnSaga
    interval_seconds: float

    async def run_for_ever(self) -> None:
        """Sweeps at every interval: runs and spawns side by side, so that a peer that is away delays no run's end."""
        async with asyncio.TaskGroup() as sweeps:
            sweeps.create_task(self._repeat("ended_runs", self.end_lost_runs))
            sweeps.create_task(self._repeat("undone_spawns", self.undo_spawns))

    async def _repeat(self, what: str, sweep: Callable[[], Awaitable[int]]) -> None:
        log = structlog.get_logger()
        while True:
            try:
                if count := await sweep():
                    log.info("swept", what=what, count=count)
            except Exception as error:  # noqa: BLE001 - the next sweep goes on, whatever stopped this one.
                log.warning("sweep_failed", what=what, error=type(error).__name__)
            await asyncio.sleep(self.interval_seconds)

    async def end_lost_runs(self) -> int:
        """Ends runs whose time is over, and those whose lease ran out with no attempt left; returns how many."""
        async with self.database.transaction(EVERY_TENANT) as connection:
            lost = await runs.take_lost(connection, UNDO_RETRY)
        ended = 0
        for row in lost:
            try:
                ended += await self._end(row)
            except Exception as error:  # noqa: BLE001 - one that cannot be ended stays for the next sweep, and keeps no other.
                log = structlog.get_logger().bind(tenant=row["tenant_id"], run_id=row["run_id"])
                log.warning("run_not_ended", error=type(error).__name__)
        return ended

    async def _end(self, row: DictRow) -> bool:
        tenant_id, run_id = row["tenant_id"], row["run_id"]
        async with self.database.transaction(tenant_id) as connection:
            locked = await lock_run(connection, tenant_id, run_id)
            if not await runs.is_lost(connection, tenant_id, run_id, row["due_time"]):
                return False
            ending = _TIMED_OUT if row["timed_out"] else _LOST
            return await self.endings.end_run(connection, tenant_id, locked, ending) is not None

    async def undo_spawns(self) -> int:
        """Undoes spawns past their deadline, and repeats what could not be undone at once; returns how many were looked at."""
        async with self.database.transaction(EVERY_TENANT) as connection:
            overdue = await runs.take_overdue_spawns(connection, UNDO_RETRY)
        places = asyncio.Semaphore(_UNDONE_AT_ONCE)

        async def undo(row: DictRow) -> None:
            async with places:
                try:
                    with acting_for(row["tenant_id"]):
                        await self._undo(row["tenant_id"], row["session_id"])
                except Exception as error:  # noqa: BLE001 - it comes again, and keeps no other.
                    log = structlog.get_logger().bind(tenant=row["tenant_id"], session_id=row["session_id"])
                    log.warning("spawn_not_undone", error=type(error).__name__)

        async with asyncio.TaskGroup() as undoing:
            for row in overdue:
                undoing.create_task(undo(row))
        return len(overdue)

    async def _undo(self, tenant_id: str, session_id: str) -> None:
        async with self.database.transaction(tenant_id) as connection:
            state = (await sessions.get(connection, tenant_id, session_id))["state"]
        if state == SessionState.PROVISIONING:
            await self.spawn.undo(tenant_id, session_id, _CUT_OFF, settled=True)
        elif state == SessionState.SPAWN_FAILED:
            await self.spawn.clear(tenant_id, session_id, forget=True)
