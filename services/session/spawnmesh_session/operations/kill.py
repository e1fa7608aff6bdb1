"""Ending a session from outside, with everything that descends from it."""

from dataclasses import dataclass

from psycopg.rows import DictRow
from spawnmesh_postgres.database import Database

from spawnmesh_session.domain import Ending, RunState, SessionState, SpawnFailure
from spawnmesh_session.operations.endings import Endings
from spawnmesh_session.operations.spawn import SpawnSaga
from spawnmesh_session.store import runs, sessions

_KILLED = Ending(state=RunState.KILLED, error_reason="KILLED", error_message="the session was killed")


@dataclass(frozen=True, slots=True)
class Kill:
    """Kills sessions."""

    database: Database
    endings: Endings
    spawn: SpawnSaga

    async def run(self, tenant_id: str, session_id: str, visible_to: str) -> int:
        """Ends the live runs of the session and of all its descendants, and closes them, in one transaction; returns how many runs it ended.

        A session that is still being spawned fails to spawn, and what there is of it is undone.
        """
        async with self.database.transaction(tenant_id) as connection:
            await sessions.get(connection, tenant_id, session_id, visible_to=visible_to)
            family = await sessions.lock_family(connection, tenant_id, session_id)
            killed = 0
            for member in (row for row in family if row["state"] == SessionState.ACTIVE):
                run = await runs.lock_live(connection, tenant_id, member["session_id"])
                if run is not None:
                    await self.endings.end_run(connection, tenant_id, run["run_id"], _KILLED)
                    killed += 1
                await self.endings.close(
                    connection, tenant_id, await sessions.lock(connection, tenant_id, member["session_id"])
                )
        for member in (row for row in family if row["state"] == SessionState.PROVISIONING):
            await self._stop_spawning(tenant_id, member)
        return killed

    async def _stop_spawning(self, tenant_id: str, member: DictRow) -> None:
        failure = SpawnFailure(
            step="kill",
            reason="SPAWN_FAILED",
            message="the session was killed while it was being spawned",
            status="FAILED_PRECONDITION",
            facts={"step": "kill"},
        )
        await self.spawn.undo(tenant_id, member["session_id"], failure, settled=False)
