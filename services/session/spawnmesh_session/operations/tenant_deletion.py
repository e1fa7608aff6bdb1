"""Deleting a tenant: nothing begins in it any more, then all that it has anywhere goes, in steps that may each be repeated."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog
from psycopg.rows import DictRow
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_postgres.database import Database

from spawnmesh_session.domain import DeletionStep
from spawnmesh_session.operations.kill import ENDED_TOGETHER, Kill
from spawnmesh_session.operations.undo import UNDO_RETRY
from spawnmesh_session.peers import PURGE_SECONDS, AttachmentSets, Hooks, ModelRouter, PurgedPart, Transcripts
from spawnmesh_session.store import runs, tenant_deletions, tenants

_PAGE = 100
_MOST_PARTS = 50  # Of one pass; other tenants' deletions wait meanwhile.
_JOB_TIME = timedelta(seconds=45)  # Longer than any job's calls may take.
_HOLD = timedelta(seconds=PURGE_SECONDS + 15)  # Nobody else goes on while a peer is waited for.


@dataclass(frozen=True, slots=True)
class TenantDeletion:
    """Deletes tenants. Each part is a transaction, or a call of a peer that may be repeated: whoever takes the row goes on.

    Whoever comes late finds it at another step, or another one, or a tenant that was created anew, and stops: each transaction asks first.
    """

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
        if parts == _MOST_PARTS:
            async with self.database.transaction(tenant_id) as connection:
                await runs.delay_dispatch(connection, tenant_id, runs.PURGE, tenant_id, timedelta(0))
        return parts > 0

    async def advance(self, tenant_id: str) -> bool:
        """Does one bounded part; False where there is nothing to do now."""
        async with self.database.transaction(tenant_id) as connection:
            await tenants.enter(connection, tenant_id)  # None begins meanwhile, whose row in the queue would go.
            deletion = await tenant_deletions.get(connection, tenant_id)
            if deletion is None or deletion["step"] == DeletionStep.DONE:
                await runs.delete_dispatch(connection, tenant_id, runs.PURGE, tenant_id)
                return False
        parts: dict[str, Callable[[str, DictRow], Awaitable[bool]]] = {
            DeletionStep.KILL: self._kill,
            DeletionStep.SETTLE: self._settle,
            DeletionStep.ROWS: self._remove_rows,
            DeletionStep.PEERS: self._purge_peers,
        }
        return await parts[deletion["step"]](tenant_id, deletion)

    async def _kill(self, tenant_id: str, deletion: DictRow) -> bool:
        async with self.database.transaction(tenant_id) as connection:
            roots = await tenant_deletions.live_roots(connection, tenant_id, _PAGE)
        for session_id in roots:
            async with self.database.transaction(tenant_id) as connection:
                if not await tenant_deletions.lock(connection, deletion):
                    return False
                family = await self.kill.end_family(connection, tenant_id, session_id, most=ENDED_TOGETHER)
                late = self.spawn_deadline if family.spawning else timedelta(0)
                await tenant_deletions.report(connection, deletion, killed_runs=family.killed_run_count, settle_in=late)
        if roots:
            return True
        async with self.database.transaction(tenant_id) as connection:
            if not await tenant_deletions.lock(connection, deletion):
                return False
            late = timedelta(0)
            if await tenant_deletions.drop_jobs(connection, tenant_id):
                late = _JOB_TIME
            if await tenant_deletions.has_clearing(connection, tenant_id):
                late = max(late, self.spawn_deadline)
            await tenant_deletions.report(connection, deletion, settle_in=late)
            await tenant_deletions.step(connection, tenant_id, DeletionStep.SETTLE)
        return True

    async def _settle(self, tenant_id: str, deletion: DictRow) -> bool:
        """What was under way ends by itself, within its deadline; after that nobody makes anything any more."""
        async with self.database.transaction(tenant_id) as connection:
            if not await tenant_deletions.lock(connection, deletion):
                return False
            if not await tenant_deletions.is_settled(connection, tenant_id):
                return False
            if await tenant_deletions.drop_jobs(connection, tenant_id):  # One was tried again just before.
                await tenant_deletions.report(connection, deletion, settle_in=_JOB_TIME)
                return False
            await tenant_deletions.step(connection, tenant_id, DeletionStep.ROWS)
        return True

    async def _remove_rows(self, tenant_id: str, deletion: DictRow) -> bool:
        async with self.database.transaction(tenant_id) as connection:
            if not await tenant_deletions.lock(connection, deletion):
                return False
            page = await tenant_deletions.any_sessions(connection, tenant_id, _PAGE)
            if page:
                gone = await tenant_deletions.purge_sessions(connection, tenant_id, page)
                await tenant_deletions.report(connection, deletion, sessions=gone)
                return True
            await tenant_deletions.purge_rest(connection, tenant_id)
            await tenant_deletions.step(connection, tenant_id, DeletionStep.PEERS)
        return True

    async def _purge_peers(self, tenant_id: str, deletion: DictRow) -> bool:
        """A part of each peer's purge; the deletion is done once all of them are, and had nothing more to remove."""
        purges: dict[str, Callable[[int], Awaitable[PurgedPart]]] = {
            "attachment-blob": self.sets.purge_tenant,
            "transcript": self.transcripts.purge_tenant,
            "hook": self.hooks.purge_tenant,
            "model-router": self.model_router.purge_tenant,
        }
        is_gone = True
        for name, purge in purges.items():
            if not await self._hold(tenant_id, deletion):
                return False
            try:
                part = await purge(deletion["settings_version"])
            except MeshError as error:
                await self._stall(tenant_id, deletion, f"{name}: {error.reason}")
                structlog.get_logger().warning("purge_stalled", tenant=tenant_id, peer=name, reason=error.reason)
                return False
            is_gone &= part.found_nothing
            if part.object_count or part.transcript_count:
                async with self.database.transaction(tenant_id) as connection:
                    await tenant_deletions.report(
                        connection, deletion, objects=part.object_count, transcripts=part.transcript_count
                    )
        return await self._finish(tenant_id, deletion) if is_gone else True

    async def _hold(self, tenant_id: str, deletion: DictRow) -> bool:
        """No other pass begins for as long as a peer's call may take; False where one has gone on."""
        async with self.database.transaction(tenant_id) as connection:
            if not await tenant_deletions.lock(connection, deletion):
                return False
            await runs.delay_dispatch(connection, tenant_id, runs.PURGE, tenant_id, _HOLD)
            return True

    async def _stall(self, tenant_id: str, deletion: DictRow, stalled_by: str) -> None:
        async with self.database.transaction(tenant_id) as connection:
            await tenant_deletions.stall(connection, deletion, stalled_by)
            await runs.delay_dispatch(connection, tenant_id, runs.PURGE, tenant_id, UNDO_RETRY)

    async def _finish(self, tenant_id: str, deletion: DictRow) -> bool:
        async with self.database.transaction(tenant_id) as connection:
            if not await tenant_deletions.lock(connection, deletion):
                return False
            await tenant_deletions.purge_rest(connection, tenant_id)
            await tenants.delete(connection, tenant_id)
            await runs.delete_dispatch(connection, tenant_id, runs.PURGE, tenant_id)
            await tenant_deletions.step(connection, tenant_id, DeletionStep.DONE)
        return True
