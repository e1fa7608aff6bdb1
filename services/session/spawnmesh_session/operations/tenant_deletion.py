"""Deleting a tenant: nothing begins in it any more, then all that it has anywhere goes, in steps that may each be repeated."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog
from psycopg.rows import DictRow
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.domain import DeletionStep
from spawnmesh_session.operations.kill import Kill
from spawnmesh_session.peers import AttachmentSets, Hooks, ModelRouter, Transcripts
from spawnmesh_session.store import runs, tenant_deletions, tenants

_PAGE = 100
_MOST_PARTS = 50  # Of one pass; other tenants' deletions wait meanwhile.
_JOB_TIME = timedelta(seconds=45)  # Longer than any job's calls may take.


@dataclass(frozen=True, slots=True)
class TenantDeletion:
    """Deletes tenants. Each part is a transaction, or a call of a peer that may be repeated: whoever takes the row goes on."""

    database: Database
    kill: Kill
    sets: AttachmentSets
    transcripts: Transcripts
    hooks: Hooks
    model_router: ModelRouter
    spawn_deadline: timedelta

    async def begin(self, tenant_id: str) -> DictRow:
        """Makes the deletion durable; returns the tenant. From the commit on nothing begins in it, and what has just begun will be found."""
        async with self.database.transaction(tenant_id) as connection:
            tenant = await tenants.find(connection, tenant_id)
            if tenant is None:
                raise not_found("tenant", tenant_id)
            if tenant["settings"] is not None and await tenant_deletions.begin(connection, tenant_id):
                await runs.insert_dispatch(connection, tenant_id, runs.PURGE, tenant_id, due_in=timedelta(0))
            found = await tenants.find(connection, tenant_id)
        if found is None:
            raise not_found("tenant", tenant_id)
        return found

    async def run(self, tenant_id: str) -> bool:
        """Goes on until the tenant is deleted, something has to be waited for, or others should have their turn; whether it did anything."""
        parts = 0
        while parts < _MOST_PARTS and await self.advance(tenant_id):
            parts += 1
        return parts > 0

    async def advance(self, tenant_id: str) -> bool:
        """Does one bounded part; False where there is nothing to do now."""
        async with self.database.transaction(tenant_id) as connection:
            deletion = await tenant_deletions.get(connection, tenant_id)
            if deletion is None or deletion["step"] == DeletionStep.DONE:
                await runs.delete_dispatch(connection, tenant_id, runs.PURGE, tenant_id)
                return False
        parts: dict[str, Callable[[str], Awaitable[bool]]] = {
            DeletionStep.KILL: self._kill,
            DeletionStep.SETTLE: self._settle,
            DeletionStep.ROWS: self._remove_rows,
            DeletionStep.PEERS: self._purge_peers,
        }
        return await parts[deletion["step"]](tenant_id)

    async def _kill(self, tenant_id: str) -> bool:
        async with self.database.transaction(tenant_id) as connection:
            roots = await tenant_deletions.live_roots(connection, tenant_id, _PAGE)
        for session_id in roots:
            async with self.database.transaction(tenant_id) as connection:
                family = await self.kill.end_family(connection, tenant_id, session_id)
                late = self.spawn_deadline if family.spawning else timedelta(0)
                await tenant_deletions.report(
                    connection, tenant_id, killed_runs=family.killed_run_count, settle_in=late
                )
        if roots:
            return True
        async with self.database.transaction(tenant_id) as connection:
            late = timedelta(0)
            if await tenant_deletions.drop_jobs(connection, tenant_id):
                late = _JOB_TIME
            if await tenant_deletions.has_clearing(connection, tenant_id):
                late = max(late, self.spawn_deadline)
            await tenant_deletions.report(connection, tenant_id, settle_in=late)
            return await tenant_deletions.step(connection, tenant_id, DeletionStep.KILL, DeletionStep.SETTLE)

    async def _settle(self, tenant_id: str) -> bool:
        """What was under way ends by itself, within its deadline; after that nobody makes anything any more."""
        async with self.database.transaction(tenant_id) as connection:
            if not await tenant_deletions.is_settled(connection, tenant_id):
                return False
            if await tenant_deletions.drop_jobs(connection, tenant_id):  # One was tried again just before.
                await tenant_deletions.report(connection, tenant_id, settle_in=_JOB_TIME)
                return False
            return await tenant_deletions.step(connection, tenant_id, DeletionStep.SETTLE, DeletionStep.ROWS)

    async def _remove_rows(self, tenant_id: str) -> bool:
        async with self.database.transaction(tenant_id) as connection:
            page = await tenant_deletions.any_sessions(connection, tenant_id, _PAGE)
            if page:
                gone = await tenant_deletions.purge_sessions(connection, tenant_id, page)
                await tenant_deletions.report(connection, tenant_id, sessions=gone)
                return True
            await tenant_deletions.purge_rest(connection, tenant_id)
            return await tenant_deletions.step(connection, tenant_id, DeletionStep.ROWS, DeletionStep.PEERS)

    async def _purge_peers(self, tenant_id: str) -> bool:
        """A part of each peer's purge; the deletion is done once all of them are, and had nothing more to remove."""
        try:
            name = "attachment-blob"
            files = await self.sets.purge_tenant()
            await self._report(tenant_id, objects=files.deleted_object_count)
            name = "transcript"
            texts = await self.transcripts.purge_tenant()
            await self._report(tenant_id, transcripts=texts.deleted_transcript_count)
            name = "hook"
            plugins = await self.hooks.purge_tenant()
            name = "model-router"
            routing = await self.model_router.purge_tenant()
        except MeshError as error:
            async with self.database.transaction(tenant_id) as connection:
                await tenant_deletions.stall(connection, tenant_id, f"{name}: {error.reason}")
            structlog.get_logger().warning("purge_stalled", tenant=tenant_id, peer=name, reason=error.reason)
            return False
        removed = files.deleted_object_count + files.deleted_row_count
        removed += texts.deleted_transcript_count + texts.deleted_row_count
        removed += plugins.deleted_row_count + routing.deleted_row_count
        if not (files.done and texts.done and plugins.done and routing.done) or removed:
            return True
        async with self.database.transaction(tenant_id) as connection:
            return await self._finish(connection, tenant_id)

    async def _report(self, tenant_id: str, *, objects: int = 0, transcripts: int = 0) -> None:
        async with self.database.transaction(tenant_id) as connection:
            await tenant_deletions.report(connection, tenant_id, objects=objects, transcripts=transcripts)

    async def _finish(self, connection: Connection, tenant_id: str) -> bool:
        await tenant_deletions.purge_rest(connection, tenant_id)
        await tenants.delete(connection, tenant_id)
        await runs.delete_dispatch(connection, tenant_id, runs.PURGE, tenant_id)
        return await tenant_deletions.step(connection, tenant_id, DeletionStep.PEERS, DeletionStep.DONE)
