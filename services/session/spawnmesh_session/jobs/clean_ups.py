"""The handlers of jobs that finish what a request began and did not finish."""

from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.job import Again, ClaimedJob

from spawnmesh_session.domain.sessions import SessionState
from spawnmesh_session.domain.spawns import SpawnFailure
from spawnmesh_session.operations.session_deletion import SessionDeleter
from spawnmesh_session.operations.settings_push import SettingsPush
from spawnmesh_session.operations.spawn_undo import SpawnUndo
from spawnmesh_session.store import sessions

_AGAIN_IN = timedelta(seconds=5)
_CUT_OFF = SpawnFailure.cut_off("deadline")


@dataclass(frozen=True, slots=True)
class CleanUps:
    """Undoes spawns, finishes deletions and repeats pushes of settings."""

    database: Database
    undo: SpawnUndo
    deleter: SessionDeleter
    settings_push: SettingsPush

    async def undo_spawn(self, job: ClaimedJob) -> Again | None:
        """Undo a spawn that is past its deadline."""
        if await self._is_in(job, SessionState.PROVISIONING):
            kept = await self.undo.undo(job.tenant_id, job.key, _CUT_OFF, settled=True)
            return Again(_AGAIN_IN) if kept is None else None
        return None

    async def clean_up_spawn(self, job: ClaimedJob) -> None:
        """Remove what a failed spawn made, if the undo did not, or something came after it.

        The undo makes the job due anew, which ends the claim: the job then remains.
        """
        if await self._is_in(job, SessionState.SPAWN_FAILED):
            await self.undo.remove(job.key)

    async def _is_in(self, job: ClaimedJob, state: SessionState) -> bool:
        """Return whether the session of the job is in the state and not deleted."""
        async with self.database.transaction(job.tenant_id) as connection:
            session = await sessions.lock_session_or_deleted(connection, job.tenant_id, job.key)
        return session is not None and session.delete_time is None and session.state == state

    async def delete_session(self, job: ClaimedJob) -> None:
        """Remove what other services store for a deleted session."""
        await self.deleter.finish(job.tenant_id, job.key)

    async def delete_family(self, job: ClaimedJob) -> None:
        """Delete what a call that was cut off has left of a large family."""
        try:
            await self.deleter.delete(job.tenant_id, job.key)
        except MeshError as error:
            if not refused_with(error, Reason.NOT_FOUND):  # A repeat of the call has deleted it.
                raise

    async def push_settings(self, job: ClaimedJob) -> Again | None:
        """Repeat a push of settings that failed or was interrupted."""
        return await self.settings_push.push_again(job.tenant_id, job.key)
