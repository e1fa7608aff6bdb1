"""The purge of a deleted tenant from every service, in repeatable steps of an operation."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog
from spawnmesh_core.audit_event import Record, work_event
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs import store as jobs

from spawnmesh_session.clients.tenant_participants import TenantParticipants
from spawnmesh_session.domain.job_kinds import FOLLOW_UPS, WORKER
from spawnmesh_session.domain.tenants import DeletionStep, TenantDeletion
from spawnmesh_session.operations.family_kill import KILL_PAGE, FamilyKiller
from spawnmesh_session.store import sessions, tenant_deletions, tenants

_DELETE_TENANT = "spawnmesh.session.v1.TenantService/DeleteTenant"
_PAGE = 100  # Live sessions that are killed in one part.
_MAX_PARTS = 10  # Parts of one pass, which a step of the operation makes.
_JOB_TIME = timedelta(seconds=45)  # Longer than the calls of any job may take.


@dataclass(frozen=True, slots=True)
class TenantPurge:
    """Purges tenants.

    Each part is a transaction or a repeatable call, so any worker may continue. Every transaction
    first locks the deletion at its step. So a late worker stops if the deletion has advanced, or
    the tenant was created again.
    """

    database: Database
    killer: FamilyKiller
    participants: TenantParticipants
    spawn_deadline: timedelta
    record: Record

    async def purge(self, tenant_id: str) -> bool:
        """Continue until it is done, must wait, or is over its share; return if it did work.

        Raises the error of a service that does not answer, after it has recorded it.
        """
        parts = 0
        while parts < _MAX_PARTS and await self.advance(tenant_id):
            parts += 1
        return parts > 0

    async def advance(self, tenant_id: str) -> bool:
        """Do one bounded part; return False if there is nothing to do now."""
        async with self.database.pipelined(tenant_id) as connection:
            deletion = await tenant_deletions.get_tenant_deletion(connection, tenant_id)
        if deletion is None or deletion.step == DeletionStep.DONE:
            return False
        steps: dict[DeletionStep, Callable[[TenantDeletion], Awaitable[bool]]] = {
            DeletionStep.KILL: self._kill,
            DeletionStep.SETTLE: self._settle,
            DeletionStep.ROWS: self._remove_rows,
            DeletionStep.PEERS: self._purge_services,
        }
        return await steps[deletion.step](deletion)

    async def _kill(self, deletion: TenantDeletion) -> bool:
        """Kill live sessions, then drop the jobs that follow starts and ends."""
        tenant_id = deletion.tenant_id
        async with self.database.transaction(tenant_id) as connection:
            roots = await sessions.list_live_roots(connection, tenant_id, _PAGE)
        for session_id in roots:
            async with self.database.pipelined(tenant_id) as connection:
                if not await tenant_deletions.lock_tenant_deletion(connection, deletion):
                    return False
                family = await self.killer.end_family(connection, tenant_id, session_id, limit=KILL_PAGE)
                settle_in = self.spawn_deadline if family.spawning else timedelta(0)
                await tenant_deletions.report_progress(
                    connection, deletion, killed_runs=family.killed_run_count, settle_in=settle_in
                )
        if roots:
            return True
        async with self.database.transaction(tenant_id) as connection:
            if not await tenant_deletions.lock_tenant_deletion(connection, deletion):
                return False
            settle_in = timedelta(0)
            if await jobs.delete_kinds(connection, tenant_id, FOLLOW_UPS):
                settle_in = _JOB_TIME
            if await tenant_deletions.has_peer_work(connection, tenant_id):
                settle_in = max(settle_in, self.spawn_deadline)
            await tenant_deletions.report_progress(connection, deletion, settle_in=settle_in)
            await tenant_deletions.set_step(connection, tenant_id, DeletionStep.SETTLE)
        return True

    async def _settle(self, deletion: TenantDeletion) -> bool:
        """Wait until the deadlines of all work in progress are over."""
        tenant_id = deletion.tenant_id
        async with self.database.transaction(tenant_id) as connection:
            if not await tenant_deletions.lock_tenant_deletion(connection, deletion):
                return False
            if not await tenant_deletions.is_settled(connection, tenant_id):
                return False
            if await jobs.delete_kinds(connection, tenant_id, FOLLOW_UPS):  # An undo enqueued one.
                await tenant_deletions.report_progress(connection, deletion, settle_in=_JOB_TIME)
                return False
            await tenant_deletions.set_step(connection, tenant_id, DeletionStep.ROWS)
        return True

    async def _remove_rows(self, deletion: TenantDeletion) -> bool:
        tenant_id = deletion.tenant_id
        async with self.database.transaction(tenant_id) as connection:
            if not await tenant_deletions.lock_tenant_deletion(connection, deletion):
                return False
            gone = await tenant_deletions.purge_page(connection, tenant_id)
            if gone:
                await tenant_deletions.report_progress(connection, deletion, sessions=gone["sessions"])
                return True
            await tenant_deletions.purge_jobs(connection, tenant_id)
            await tenant_deletions.set_step(connection, tenant_id, DeletionStep.PEERS)
        return True

    async def _purge_services(self, deletion: TenantDeletion) -> bool:
        """Do a part of each service's purge.

        The deletion is DONE once none found anything to remove.
        """
        tenant_id = deletion.tenant_id
        is_gone = True
        for participant in self.participants:
            name = participant.service
            if not await self._is_current(deletion):
                return False
            try:
                part = await participant.purge(deletion.settings_version)
            except MeshError as error:
                await self._record_stall(deletion, f"{name}: {error.reason}")
                structlog.get_logger().warning(
                    "purge_stalled", tenant=tenant_id, peer=name, reason=error.reason
                )
                raise
            is_gone &= part.found_nothing
            objects, transcripts = part.removed.get("objects", 0), part.removed.get("transcripts", 0)
            if objects or transcripts:
                async with self.database.transaction(tenant_id) as connection:
                    await tenant_deletions.report_progress(
                        connection, deletion, objects=objects, transcripts=transcripts
                    )
        return await self._finish(deletion) if is_gone else True

    async def _is_current(self, deletion: TenantDeletion) -> bool:
        """Return False if another pass has advanced, or the tenant was created again."""
        async with self.database.transaction(deletion.tenant_id) as connection:
            return await tenant_deletions.lock_tenant_deletion(connection, deletion)

    async def _record_stall(self, deletion: TenantDeletion, stalled_by: str) -> None:
        tenant_id = deletion.tenant_id
        async with self.database.transaction(tenant_id) as connection:
            await tenant_deletions.record_stall(connection, deletion, stalled_by)

    async def _finish(self, deletion: TenantDeletion) -> bool:
        tenant_id = deletion.tenant_id
        async with self.database.transaction(tenant_id) as connection:
            if not await tenant_deletions.lock_tenant_deletion(connection, deletion):
                return False
            await tenant_deletions.purge_jobs(connection, tenant_id)
            await tenants.delete_tenant(connection, tenant_id)
            await tenant_deletions.set_step(connection, tenant_id, DeletionStep.DONE)
        self.record(work_event(WORKER, tenant_id, _DELETE_TENANT, utc_now(), ("tenant_id", tenant_id)))
        return True
