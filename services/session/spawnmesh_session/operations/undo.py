"""Undoing a spawn: the session fails, and everything that the saga's steps may have made goes."""

from dataclasses import dataclass
from datetime import timedelta

import structlog
from procrastinate import App
from psycopg.rows import DictRow
from spawnmesh_core.errors import name_of
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs import enqueue

from spawnmesh_session import jobs
from spawnmesh_session.domain import EventKind, SessionState, SpawnFailure
from spawnmesh_session.peers import AttachmentSets, Transcripts
from spawnmesh_session.store import ended, runs, sessions

UNDO_RETRY = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class SpawnUndo:
    """Every step may be repeated, by whoever finds the spawn: its own saga, a kill, the sweep."""

    database: Database
    sets: AttachmentSets
    transcripts: Transcripts
    job_app: App

    async def run(
        self, tenant_id: str, session_id: str, failure: SpawnFailure, *, settled: bool, passed_gate: bool = False
    ) -> DictRow | None:
        """PROVISIONING -> SPAWN_FAILED, then everything that the steps may have made goes, as `clean_up` says. A spawned session is left alone.
        `passed_gate` is what the caller knows, and may not have written down any more.

        Returns the session, with the failure that is kept, which is another where it had failed already, or with its `delete_time`; None where
        the database did not answer: then the row in the queue makes the reconciler undo it. Never raises.
        """
        try:
            async with self.database.transaction(tenant_id) as connection:
                await self.mark_failed(connection, tenant_id, session_id, failure, passed_gate=passed_gate)
                kept = await ended.lock_even_deleted(connection, tenant_id, session_id)
        except Exception as error:  # noqa: BLE001 - whatever it was, the spawn's own failure is what the caller must hear.
            structlog.get_logger().warning("undo_postponed", session=session_id, error=name_of(error))
            return None
        if kept is not None and kept["state"] == SessionState.SPAWN_FAILED and kept["delete_time"] is None:
            await self.clean_up(tenant_id, session_id, failure, settled=settled)
        return kept

    async def mark_failed(
        self,
        connection: Connection,
        tenant_id: str,
        session_id: str,
        failure: SpawnFailure,
        *,
        passed_gate: bool = False,
    ) -> None:
        """PROVISIONING -> SPAWN_FAILED; the plugins that let it pass are told once that is known. A session that has failed already while its
        saga was at work goes back into the queue: what the saga has made meanwhile must go too. Of one that was deleted the deletion sees to it.
        """
        session = await ended.lock_even_deleted(connection, tenant_id, session_id)
        if session is None or session["delete_time"] is not None:
            return
        if session["state"] not in (SessionState.PROVISIONING, SessionState.SPAWN_FAILED):
            return
        await runs.insert_dispatch(connection, tenant_id, runs.SPAWN, session_id, due_in=UNDO_RETRY)
        were_told = session["gate_passed"]
        if session["state"] == SessionState.PROVISIONING:
            were_told = False
            await sessions.fail_spawn(connection, tenant_id, session_id, failure)
            await sessions.append_event(
                connection, tenant_id, session_id, EventKind.SPAWN_FAILED, detail=failure.reason
            )
        if (session["gate_passed"] or passed_gate) and not were_told:
            told = jobs.tell_ended(
                tenant_id,
                session_id,
                run_id="",
                epoch=0,
                parent_session_id=session["parent_session_id"],
                outcome="spawn_failed",
                traceparent=session["traceparent"],
            )
            await enqueue(self.job_app, connection, told)

    async def clean_up(self, tenant_id: str, session_id: str, failure: SpawnFailure, *, settled: bool) -> None:
        """Removes what a failed spawn may have made. Never raises.

        What cannot be removed now, since a peer is down, stays in the queue until the reconciler has removed it. Where it is not `settled`
        what a step did (its answer was lost, or it may still be at work), the reconciler looks once more later.
        """
        log = structlog.get_logger().bind(
            tenant=tenant_id, session=session_id, step=failure.step, reason=failure.reason
        )
        try:
            await self.clear(tenant_id, session_id, forget=settled)
        except Exception as error:  # noqa: BLE001 - whatever it was, the row in the queue makes the reconciler repeat it.
            log.warning("undo_postponed", error=name_of(error))
        else:
            log.info("spawn_undone")

    async def clear(self, tenant_id: str, session_id: str, *, forget: bool) -> None:
        """Releases the set and deletes the transcript of a spawn that failed; with `forget` the reconciler need not look at it again."""
        await self.sets.release(derived_id(IdKind.ATTACHMENT_SET, session_id))
        await self.transcripts.delete(session_id)
        if not forget:
            return
        async with self.database.transaction(tenant_id) as connection:
            await runs.delete_dispatch(connection, tenant_id, runs.SPAWN, session_id)
