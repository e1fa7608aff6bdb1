"""What nobody is left to do: undoing spawns that were cut off, ending runs that no runner can finish."""

import asyncio
from dataclasses import dataclass

import structlog
from psycopg import Error as DatabaseError
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import EVERY_TENANT, Database, rescope
from spawnmesh_runtime.acting import acting_for

from spawnmesh_session.domain import Ending, RunState, SessionState, SpawnFailure
from spawnmesh_session.operations.endings import Endings
from spawnmesh_session.operations.spawn import UNDO_RETRY, SpawnSaga
from spawnmesh_session.store import runs, sessions

_TIMED_OUT = Ending(
    state=RunState.TIMED_OUT, error_reason="RUN_TIMEOUT", error_message="the run took longer than its run_timeout"
)
_LOST = Ending(
    state=RunState.FAILED, error_reason="ATTEMPTS_EXHAUSTED", error_message="every runner that held the run was lost"
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs in the worker; several may run at once."""

    database: Database
    endings: Endings
    spawn: SpawnSaga
    interval_seconds: float

    async def run_for_ever(self) -> None:
        """Sweeps at every interval; a failure is logged and the next sweep goes on."""
        log = structlog.get_logger()
        while True:
            try:
                ended, undone = await self.end_lost_runs(), await self.undo_spawns()
                if ended or undone:
                    log.info("swept", ended_runs=ended, undone_spawns=undone)
            except (DatabaseError, MeshError) as error:
                log.warning("sweep_failed", error=type(error).__name__)
            await asyncio.sleep(self.interval_seconds)

    async def end_lost_runs(self) -> int:
        """Ends runs whose time is over, and those whose lease ran out with no attempt left; returns how many."""
        ended = 0
        async with self.database.transaction(EVERY_TENANT) as connection:
            lost = await runs.take_lost(connection)
        for row in lost:
            async with self.database.transaction(row["tenant_id"]) as connection:
                ending = _TIMED_OUT if row["timed_out"] else _LOST
                ended += await self.endings.end_run(connection, row["tenant_id"], row["run_id"], ending) is not None
        return ended

    async def undo_spawns(self) -> int:
        """Undoes spawns past their deadline, and repeats what could not be undone at once; returns how many were looked at."""
        async with self.database.transaction(EVERY_TENANT) as connection:
            overdue = await runs.take_overdue_spawns(connection)
            for row in overdue:
                await rescope(connection, row["tenant_id"])
                await runs.postpone_dispatch(connection, row["tenant_id"], runs.SPAWN, row["session_id"], UNDO_RETRY)
        for row in overdue:
            with acting_for(row["tenant_id"]):
                await self._undo(row["tenant_id"], row["session_id"])
        return len(overdue)

    async def _undo(self, tenant_id: str, session_id: str) -> None:
        async with self.database.transaction(tenant_id) as connection:
            state = (await sessions.get(connection, tenant_id, session_id))["state"]
        if state == SessionState.PROVISIONING:
            failure = SpawnFailure(
                step="deadline",
                reason=Reason.SPAWN_FAILED,
                message="the spawn was cut off and undone; spawn again with a new request_id",
                status="FAILED_PRECONDITION",
                facts={"step": "deadline"},
            )
            await self.spawn.undo(tenant_id, session_id, failure, settled=True)
        elif state == SessionState.SPAWN_FAILED:
            await self.spawn.clear(tenant_id, session_id, forget=True)
