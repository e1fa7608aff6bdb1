"""Retention: archive, delete and forget ended sessions, and prune growing tables."""

from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_core.audit_event import Record, work_event
from spawnmesh_core.clock import utc_now
from spawnmesh_postgres.database import Database

from spawnmesh_session.domain.job_kinds import WORKER
from spawnmesh_session.domain.tenants import retention_of
from spawnmesh_session.operations.session_deletion import SessionDeleter
from spawnmesh_session.store import events, inbox, schedules, sessions, tenants
from spawnmesh_session.store.sessions import Position

REQUEST_MEMORY = timedelta(hours=24)
"""The time for which the contract promises to remember a request_id, of spawns and of messages."""
_DELETE_SESSION = "spawnmesh.session.v1.SessionService/DeleteSession"
_PAGE = 200
_PRUNED_ROWS = 1000  # Rows of each table that one pass deletes.


@dataclass(frozen=True, slots=True)
class RetentionJob:
    """Applies a tenant's current retention to what is due by the database's clock.

    After an interruption the next pass begins after the interval.
    """

    database: Database
    deleter: SessionDeleter
    interval: timedelta
    record: Record

    async def retain(self, tenant_id: str) -> int:
        """Do one bounded pass; return the number of rows that it changed.

        The next pass is due after the interval, or at once if there is more to do.
        """
        async with self.database.transaction(tenant_id) as connection:
            settings = await tenants.claim_retention(connection, tenant_id, self.interval)
            if settings is None:
                return 0
            retention = retention_of(settings)
            to_archive = await sessions.list_sessions_to_archive(
                connection, tenant_id, retention.archive_after, _PAGE
            )
            archived = await sessions.archive_sessions(connection, tenant_id, to_archive)
        deleted = 0
        if retention.delete_after is not None:
            deleted = await self._delete(tenant_id, retention.delete_after)
        pruned = await self._prune(tenant_id, max(retention.archive_after, REQUEST_MEMORY))
        if archived == _PAGE or deleted == _PAGE or max(pruned) == _PRUNED_ROWS:
            async with self.database.transaction(tenant_id) as connection:
                await tenants.make_retention_due(connection, tenant_id)
        return archived + deleted + sum(pruned)

    async def _delete(self, tenant_id: str, delete_after: timedelta) -> int:
        """Delete at most a page of sessions; a parent follows the last of its children."""
        count, freed = 0, False
        position: Position | None = sessions.FIRST_POSITION
        while count < _PAGE and position is not None:
            async with self.database.transaction(tenant_id) as connection:
                page = await sessions.list_sessions_to_delete(
                    connection, tenant_id, delete_after, position, _PAGE
                )
                deletable = page.without_children[: _PAGE - count]
                gone = await self.deleter.mark_deleted(connection, tenant_id, deletable)
            for session_id in gone:
                self.record(
                    work_event(WORKER, tenant_id, _DELETE_SESSION, utc_now(), ("session_id", session_id))
                )
            count += len(gone)
            freed = freed or bool(gone)
            position = page.next_position
            if position is None and freed:
                position, freed = sessions.FIRST_POSITION, False
        return count

    async def _prune(self, tenant_id: str, age: timedelta) -> tuple[int, int, int, int]:
        async with self.database.transaction(tenant_id) as connection:
            return (
                await events.prune_events(connection, tenant_id, age, _PRUNED_ROWS),
                await inbox.prune_messages(connection, tenant_id, age, _PRUNED_ROWS),
                await schedules.prune_firings(connection, tenant_id, age, _PRUNED_ROWS),
                await sessions.forget_deleted_sessions(connection, tenant_id, REQUEST_MEMORY, _PRUNED_ROWS),
            )
