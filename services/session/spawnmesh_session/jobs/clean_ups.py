"""The handlers of jobs that finish what no request finishes any more."""

from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.job import Again, ClaimedJob

from spawnmesh_session.domain.sessions import SessionState
from spawnmesh_session.domain.spawns import SpawnFailure
from spawnmesh_session.operations.session_deletion import SessionDeleter
from spawnmesh_session.operations.settings_push import SettingsPush
from spawnmesh_session.operations.spawn_undo import SpawnUndo
from spawnmesh_session.operations.tenant_purge import TenantPurge
from spawnmesh_session.store import sessions

_AGAIN_IN = timedelta(seconds=5)
_CUT_OFF = SpawnFailure.cut_off("deadline")


@dataclass(frozen=True, slots=True)
class CleanUps:
    """Undoes spawns, finishes deletions, purges tenants and repeats pushes of settings."""

    database: Database
    undo: SpawnUndo
    deleter: SessionDeleter
    tenant_purge: TenantPurge
    settings_push: SettingsPush

    async def undo_spawn(self, job: ClaimedJob) -> Again | None:
        """Undo a spawn that is past its deadline, or repeat an undo that did not end.

        The undo of a spawn in progress makes the job due anew, which ends the claim: the job then
        remains, whatever is returned here.
        """
        tenant_id, session_id = job.tenant_id, job.key
        async with self.database.transaction(tenant_id) as connection:
            session = await sessions.lock_session_or_deleted(connection, tenant_id, session_id)
        if session is None or session.delete_time is not None:
            return None
        if session.state == SessionState.PROVISIONING:
            kept = await self.undo.undo(tenant_id, session_id, _CUT_OFF, settled=True)
            return Again(_AGAIN_IN) if kept is None else None
        if session.state == SessionState.SPAWN_FAILED:
            await self.undo.clear(tenant_id, session_id, forget=False)
        return None

    async def delete_session(self, job: ClaimedJob) -> None:
        """Remove what other services store for a deleted session."""
        await self.deleter.finish(job.tenant_id, job.key)

    async def purge_tenant(self, job: ClaimedJob) -> Again:
        """Continue the deletion of a tenant. When it is done, there is no job."""
        did_work = await self.tenant_purge.purge(job.tenant_id)
        return Again(timedelta(0) if did_work else _AGAIN_IN)

    async def push_settings(self, job: ClaimedJob) -> Again | None:
        """Repeat a push of settings that failed or was interrupted."""
        return await self.settings_push.push_again(job.tenant_id, job.key)
