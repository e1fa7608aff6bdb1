"""The deletion of sessions with everything that other services store for them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog
from spawnmesh_core.errors import MeshError, error_label, refused_with
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs import store as jobs
from spawnmesh_postgres.jobs.job import NewJob
from spawnmesh_runtime.interceptors.deadline import remaining_seconds

from spawnmesh_session.clients.attachment_sets import AttachmentSets
from spawnmesh_session.clients.transcripts import Transcripts
from spawnmesh_session.domain.job_kinds import CLEAN_UP_SPAWN, DELETE_FAMILY, DELETE_SESSION
from spawnmesh_session.operations.family_kill import EndedFamily, FamilyKiller
from spawnmesh_session.store import output_sets, sessions

_PAGE = 500  # Sessions that one transaction deletes; a larger family takes several.
_FINISH_PAGE = 64
_OUTPUT_PAGE = 50  # Output sets of a session that are released before their rows are deleted.
_AGAIN_IN = timedelta(seconds=5)  # Until then the call may finish the sessions itself.
_CONCURRENT_SESSIONS = 8
_FINISH_SECONDS = 30.0  # For a call without a deadline.
_FINISH_SHARE = 0.8  # Of the call's remaining time: the response must arrive before its deadline.


@dataclass(frozen=True, slots=True)
class DeletionResult:
    """The sessions that one call deleted, and the runs that it killed."""

    session_count: int
    killed_run_count: int


@dataclass(frozen=True, slots=True)
class SessionDeleter:
    """Deletes sessions: at once for every caller, then, with retries, in the other services.

    The job of a session remains until the other services store nothing. They refuse what a spawn
    in progress would create later, since a released or deleted id stays so.
    """

    database: Database
    killer: FamilyKiller
    sets: AttachmentSets
    transcripts: Transcripts

    async def delete(self, tenant_id: str, session_id: str) -> DeletionResult:
        """Delete the session and its descendants. A deleted session returns zero counts.

        An interruption may leave a large family deleted in part, youngest first: a job finds the
        session and deletes the rest, and so does a repeat.
        """
        gone: list[str] = []
        killed_count = 0
        while True:
            async with self.database.pipelined(tenant_id) as connection:
                family = await self._end_page(connection, tenant_id, session_id)
                if family is None:
                    return DeletionResult(len(gone), killed_count)
                youngest_first = family.members[::-1]
                if family.has_more or len(youngest_first) > _PAGE:
                    rest = NewJob(DELETE_FAMILY, session_id, due_in=_after_this_call())
                    await jobs.enqueue(connection, tenant_id, rest)
                if not family.has_more:
                    gone += await self.mark_deleted(connection, tenant_id, youngest_first[:_PAGE])
            killed_count += family.killed_run_count
            if not family.has_more:
                break
        # All of them have ended, so none can be spawned among them.
        for start in range(_PAGE, len(youngest_first), _PAGE):
            page = youngest_first[start : start + _PAGE]
            async with self.database.pipelined(tenant_id) as connection:
                await sessions.lock_members(connection, tenant_id, page)
                gone += await self.mark_deleted(connection, tenant_id, page)
                if start + _PAGE >= len(youngest_first):
                    await jobs.delete(connection, tenant_id, DELETE_FAMILY, session_id)
        await self._finish_before_deadline(tenant_id, gone)
        return DeletionResult(len(gone), killed_count)

    async def _end_page(self, connection: Connection, tenant_id: str, session_id: str) -> EndedFamily | None:
        """End a page of the family; return None if it is deleted."""
        try:
            return await self.killer.end_family(connection, tenant_id, session_id, limit=_PAGE)
        except MeshError as error:
            if refused_with(error, Reason.NOT_FOUND) and await sessions.find_deleted_sessions(
                connection, tenant_id, [session_id]
            ):
                return None
            raise

    async def mark_deleted(
        self, connection: Connection, tenant_id: str, session_ids: Sequence[str]
    ) -> list[str]:
        """Delete ended sessions for every caller, and queue the rest of the work.

        Return the sessions that were deleted now.
        """
        gone = await sessions.delete_sessions(connection, tenant_id, session_ids)
        await jobs.delete(connection, tenant_id, CLEAN_UP_SPAWN, *gone)
        left = [NewJob(DELETE_SESSION, session_id, due_in=_AGAIN_IN) for session_id in gone]
        await jobs.enqueue(connection, tenant_id, *left)
        return gone

    async def finish(self, tenant_id: str, session_id: str) -> None:
        """Remove what other services store for a deleted session, and its job."""
        await self._finish_all(tenant_id, [session_id])

    async def _finish_all(self, tenant_id: str, session_ids: Sequence[str]) -> None:
        """Finish several sessions. Raise the first failure after the others are done."""
        async with self.database.pipelined(tenant_id) as connection:
            deleted = await sessions.find_deleted_sessions(connection, tenant_id, session_ids)
        limit = asyncio.Semaphore(_CONCURRENT_SESSIONS)

        async def clear(session_id: str) -> None:
            async with limit:
                if deleted[session_id]:
                    await self.sets.release(derived_id(IdKind.ATTACHMENT_SET, session_id))
                await self._release_outputs(tenant_id, session_id)
                await self.transcripts.delete(session_id)

        to_clear = [session_id for session_id in session_ids if session_id in deleted]
        results = await asyncio.gather(*map(clear, to_clear), return_exceptions=True)
        failures = {one: result for one, result in zip(to_clear, results, strict=True) if result is not None}
        done = [session_id for session_id in session_ids if session_id not in failures]
        async with self.database.pipelined(tenant_id) as connection:
            await jobs.delete(connection, tenant_id, DELETE_SESSION, *done)
        for failure in failures.values():
            raise failure

    async def _release_outputs(self, tenant_id: str, session_id: str) -> None:
        """Release the files that the session has published, and forget their sets, page by page."""
        while True:
            async with self.database.transaction(tenant_id) as connection:
                set_ids = await output_sets.list_output_set_ids(
                    connection, tenant_id, session_id, _OUTPUT_PAGE
                )
            if not set_ids:
                return
            for set_id in set_ids:
                await self.sets.release(set_id)
            async with self.database.transaction(tenant_id) as connection:
                await output_sets.delete_output_sets(connection, tenant_id, set_ids)

    async def _finish_before_deadline(self, tenant_id: str, session_ids: Sequence[str]) -> None:
        """Finish as many sessions as the caller's deadline allows.

        Never raises: the jobs of the sessions do the rest.
        """
        remaining = remaining_seconds()
        loop = asyncio.get_running_loop()
        give_up = loop.time() + (_FINISH_SECONDS if remaining is None else remaining * _FINISH_SHARE)
        for start in range(0, len(session_ids), _FINISH_PAGE):
            try:
                async with asyncio.timeout_at(give_up):
                    await self._finish_all(tenant_id, session_ids[start : start + _FINISH_PAGE])
            except Exception as error:  # noqa: BLE001
                # The jobs of the sessions repeat it.
                log = structlog.get_logger().bind(tenant=tenant_id, session=session_ids[start])
                log.warning("deletion_postponed", error=error_label(error), left=len(session_ids) - start)
            if loop.time() >= give_up:
                return


def _after_this_call() -> timedelta:
    """Return the time until the call that is being served has ended, or an attempt of a job."""
    remaining = remaining_seconds()
    return timedelta(seconds=_FINISH_SECONDS if remaining is None else remaining) + _AGAIN_IN
