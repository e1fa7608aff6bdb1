"""The undo of a spawn: fail the session, and remove what the saga may have created."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import structlog
from spawnmesh_core.errors import MeshError, error_label
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs import store as jobs
from spawnmesh_postgres.jobs.job import NewJob

from spawnmesh_session.clients.attachment_sets import AttachmentSets
from spawnmesh_session.clients.transcripts import Transcripts
from spawnmesh_session.domain.job_kinds import CLEAN_UP_SPAWN, UNDO_SPAWN
from spawnmesh_session.domain.sessions import EventKind, Session, SessionState
from spawnmesh_session.domain.spawns import PluginAllowed, SpawnFailure
from spawnmesh_session.operations import follow_up_jobs
from spawnmesh_session.store import events, sessions, spawns

_AGAIN_IN = timedelta(seconds=5)  # Until then the saga, or a kill, may undo the spawn itself.
_PAUSE_SECONDS = 0.5
_MAX_LOOKS = 10


@dataclass(frozen=True, slots=True)
class SpawnUndo:
    """Undoes spawns. Every step may be repeated: by the saga, by a kill and by a job."""

    database: Database
    sets: AttachmentSets
    transcripts: Transcripts

    async def undo(
        self,
        tenant_id: str,
        session_id: str,
        failure: SpawnFailure,
        *,
        settled: bool,
        allowed: PluginAllowed = PluginAllowed.UNKNOWN,
        has_made: bool = True,
        later: Callable[[Coroutine[Any, Any, None]], None] | None = None,
    ) -> Session | None:
        """PROVISIONING -> SPAWN_FAILED, then clean up; or leave that to `later`.

        An active session stays as it is. Never raises. `allowed` is what the caller knows and
        may not have recorded. `has_made` says that other services may keep something of the spawn.

        Return the session with the failure that is stored, which differs if it had failed before,
        or with its `delete_time`. Return None if the database did not answer: then the job of the
        spawn undoes it.
        """
        try:
            kept = await self._fail(tenant_id, session_id, failure, allowed)
        except Exception as error:  # noqa: BLE001 - the caller must see the spawn's own failure.
            structlog.get_logger().warning("undo_postponed", session=session_id, error=error_label(error))
            return None
        cleaning = self._clean_up_failed(tenant_id, kept, failure, settled=settled, has_made=has_made)
        if later is None:
            await cleaning
        else:
            later(cleaning)
        return kept

    async def undo_when_possible(
        self, tenant_id: str, session_id: str, failure: SpawnFailure, *, allowed: PluginAllowed
    ) -> None:
        """Undo as soon as the database answers, so that a repeat of the request_id need not wait
        for the job.

        The server may execute the statement that inserts the session after it has answered others.
        So look for the session for some seconds.
        """
        look_count = 0
        while look_count < _MAX_LOOKS:
            await asyncio.sleep(_PAUSE_SECONDS)
            try:
                kept = await self._fail(tenant_id, session_id, failure, allowed)
            except (psycopg.Error, MeshError):  # It does not answer, or is busy.
                continue
            if kept is not None:
                await self._clean_up_failed(tenant_id, kept, failure, settled=False)
                return
            look_count += 1

    async def _fail(
        self, tenant_id: str, session_id: str, failure: SpawnFailure, allowed: PluginAllowed
    ) -> Session | None:
        async with self.database.pipelined(tenant_id) as connection:
            await self.mark_failed(connection, tenant_id, session_id, failure, allowed=allowed)
            return await sessions.lock_session_or_deleted(connection, tenant_id, session_id)

    async def _clean_up_failed(
        self,
        tenant_id: str,
        kept: Session | None,
        failure: SpawnFailure,
        *,
        settled: bool,
        has_made: bool = True,
    ) -> None:
        if kept is not None and kept.state == SessionState.SPAWN_FAILED and kept.delete_time is None:
            await self.clean_up(tenant_id, kept.session_id, failure, settled=settled, has_made=has_made)

    async def mark_failed(
        self,
        connection: Connection,
        tenant_id: str,
        session_id: str,
        failure: SpawnFailure,
        *,
        allowed: PluginAllowed = PluginAllowed.UNKNOWN,
    ) -> None:
        """PROVISIONING -> SPAWN_FAILED, and publish the failure if a plugin had allowed the spawn.

        If neither the row nor the caller knows that, a job asks the hook service.

        The job that undoes the spawn becomes one that cleans up after it. It is due again if the
        session failed while its saga was in progress, since the saga may have created more since
        then. The deletion cleans up after a deleted session.
        """
        session = await sessions.lock_session_or_deleted(connection, tenant_id, session_id)
        if session is None or session.delete_time is not None:
            return
        if session.state not in (SessionState.PROVISIONING, SessionState.SPAWN_FAILED):
            return
        clean_up = NewJob(CLEAN_UP_SPAWN, session_id, traceparent=session.traceparent, due_in=_AGAIN_IN)
        await jobs.reschedule(connection, tenant_id, clean_up)
        is_first = session.state == SessionState.PROVISIONING
        if is_first:
            await jobs.delete(connection, tenant_id, UNDO_SPAWN, session_id)
            await spawns.fail_spawn(connection, tenant_id, session_id, failure)
            await events.append_event(
                connection, tenant_id, session_id, EventKind.SPAWN_FAILED, detail=failure.reason
            )
        has_passed = session.gate_passed or allowed is PluginAllowed.YES
        # The end of a session with `gate_passed` was published when it failed first.
        if has_passed and (is_first or not session.gate_passed):
            ended = follow_up_jobs.publish_run_end(
                session_id,
                run_id="",
                agent_id=session.agent_id,
                parent_session_id=session.parent_session_id,
                outcome=follow_up_jobs.SPAWN_FAILED,
                traceparent=session.traceparent,
            )
            await jobs.enqueue(connection, tenant_id, ended)
        elif is_first and allowed is PluginAllowed.UNKNOWN:
            unknown = follow_up_jobs.publish_spawn_failure(
                session_id,
                agent_id=session.agent_id,
                parent_session_id=session.parent_session_id,
                traceparent=session.traceparent,
            )
            await jobs.enqueue(connection, tenant_id, unknown)

    async def clean_up(
        self,
        tenant_id: str,
        session_id: str,
        failure: SpawnFailure,
        *,
        settled: bool,
        has_made: bool = True,
    ) -> None:
        """Remove what a failed spawn may have created. Never raises.

        If a service is down, the job of the spawn repeats it. If the effect of a step is not
        `settled` (its answer was lost, or it is still in progress), the job repeats it once.
        """
        log = structlog.get_logger().bind(
            tenant=tenant_id, session=session_id, step=failure.step, reason=failure.reason
        )
        try:
            if has_made:
                await self.remove(session_id)
            if settled:
                await self._forget(tenant_id, session_id)
        except Exception as error:  # noqa: BLE001
            # The job of the spawn repeats it.
            log.warning("undo_postponed", error=error_label(error))
        else:
            log.info("spawn_undone")

    async def remove(self, session_id: str) -> None:
        """Release the set and delete the transcript."""
        await self.sets.release(derived_id(IdKind.ATTACHMENT_SET, session_id))
        await self.transcripts.delete(session_id)

    async def _forget(self, tenant_id: str, session_id: str) -> None:
        async with self.database.transaction(tenant_id) as connection:
            await jobs.delete(connection, tenant_id, CLEAN_UP_SPAWN, session_id)
