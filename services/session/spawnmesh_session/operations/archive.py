"""Putting ended sessions away."""

from dataclasses import dataclass

from psycopg.rows import DictRow
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.domain import SessionState
from spawnmesh_session.operations.endings import Endings
from spawnmesh_session.store import ended, runs, sessions


@dataclass(frozen=True, slots=True)
class Archive:
    """Archives sessions."""

    database: Database
    endings: Endings

    async def run(self, tenant_id: str, session_id: str) -> tuple[DictRow, int]:
        """Puts the session and its descendants away, all or none; the session, and how many were put away now.

        Those that are open and idle are closed for it. Raises RUN_STATE where one has a live run, SPAWN_IN_PROGRESS where one is being spawned.
        """
        async with self.database.transaction(tenant_id) as connection:
            family = await sessions.lock_family(connection, tenant_id, session_id)
            for member in family:
                await self._close(connection, tenant_id, member)
            count = await ended.archive(connection, tenant_id, [row["session_id"] for row in family])
            return await sessions.get(connection, tenant_id, session_id), count

    async def _close(self, connection: Connection, tenant_id: str, member: DictRow) -> None:
        session_id = member["session_id"]
        if member["state"] == SessionState.PROVISIONING:
            raise MeshError(
                Reason.SPAWN_IN_PROGRESS,
                f"session {session_id} is being spawned; archive it when it has ended",
                retry_after_seconds=1.0,
                facts={"session_id": session_id},
            )
        if member["state"] != SessionState.ACTIVE:
            return
        live = await runs.lock_live(connection, tenant_id, session_id)
        if live is not None:
            raise MeshError(
                Reason.RUN_STATE,
                f"session {session_id} has a live run; kill it first, or wait for its end",
                facts={"session_id": session_id, "run_id": live["run_id"], "state": live["state"]},
            )
        await self.endings.close(connection, tenant_id, await sessions.lock(connection, tenant_id, session_id))
