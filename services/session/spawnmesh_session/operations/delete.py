"""Deleting sessions with all that they have."""

import asyncio
from dataclasses import dataclass

import structlog
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.operations.kill import Kill
from spawnmesh_session.operations.undo import UNDO_RETRY
from spawnmesh_session.peers import AttachmentSets, Transcripts
from spawnmesh_session.store import ended, runs

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Deleted:
    """What one call deleted."""

    session_count: int
    killed_run_count: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes sessions: first for every caller, in one transaction; then what peers keep of them, as often as it takes.

    A row in the queue stays until peers have nothing left. What a spawn that was under way would make after that, they refuse: an id that was
    released or deleted there stays so.
    """

    database: Database
    kill: Kill
    sets: AttachmentSets
    transcripts: Transcripts

    async def run(self, tenant_id: str, session_id: str) -> Deleted:
        """The session and its descendants are gone; a deleted one answers the same, with nothing more to do."""
        async with self.database.transaction(tenant_id) as connection:
            try:
                family = await self.kill.end_family(connection, tenant_id, session_id)
            except MeshError as error:
                if not refused_with(error, Reason.NOT_FOUND):
                    raise
                if await ended.find_deleted(connection, tenant_id, session_id) is None:
                    raise
                return Deleted(0, 0)
            gone = await self.mark(connection, tenant_id, family.members)
        await self._finish_soon(tenant_id, gone)
        return Deleted(len(gone), family.killed_run_count)

    async def mark(self, connection: Connection, tenant_id: str, session_ids: list[str]) -> list[str]:
        """Deletes ended sessions for every caller, and puts what is left to do into the queue; returns which were deleted now."""
        gone = await ended.delete(connection, tenant_id, session_ids)
        for session_id in gone:
            await runs.delete_dispatch(connection, tenant_id, runs.SPAWN, session_id)
            await runs.insert_dispatch(connection, tenant_id, runs.DELETE, session_id, due_in=UNDO_RETRY)
        return gone

    async def finish(self, tenant_id: str, session_id: str) -> None:
        """Removes what peers keep of a deleted session, and it need not be looked at again."""
        async with self.database.transaction(tenant_id) as connection:
            deleted = await ended.find_deleted(connection, tenant_id, session_id)
        if deleted is not None:
            if deleted["may_have_files"]:
                await self.sets.release(derived_id(IdKind.ATTACHMENT_SET, session_id))
            await self.transcripts.delete(session_id)
        async with self.database.transaction(tenant_id) as connection:
            await runs.delete_dispatch(connection, tenant_id, runs.DELETE, session_id)

    async def _finish_soon(self, tenant_id: str, session_ids: list[str]) -> None:
        """Removes what can be removed now. Never raises: the rest stays in the queue."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def finish(session_id: str) -> None:
            async with places:
                try:
                    await self.finish(tenant_id, session_id)
                except Exception as error:  # noqa: BLE001 - the row in the queue makes the sweep repeat it.
                    log = structlog.get_logger().bind(tenant=tenant_id, session_id=session_id)
                    log.warning("deletion_postponed", error=type(error).__name__)

        async with asyncio.TaskGroup() as finishing:
            for session_id in session_ids:
                finishing.create_task(finish(session_id))
