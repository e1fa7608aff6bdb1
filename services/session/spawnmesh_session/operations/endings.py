"""What must be true after a run has ended, committed with its terminal state: whichever way it ended, it is the same."""

from dataclasses import dataclass, replace
from datetime import timedelta

from procrastinate import App
from psycopg import AsyncCursor
from psycopg.rows import DictRow
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.secrets import may_hold_secret
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.jobs import DueJob, enqueue

from spawnmesh_session import jobs
from spawnmesh_session.domain import (
    TERMINAL_RUN_STATES,
    Ending,
    EventKind,
    SessionMode,
    SessionState,
    announce_key,
    announcement,
    masks_secrets,
    releases_attachments,
)
from spawnmesh_session.operations.masking import masked
from spawnmesh_session.run_metrics import RunMetrics
from spawnmesh_session.store import inbox, runs, sessions, tenants
from spawnmesh_session.store.runs import NewRun


@dataclass(frozen=True, slots=True)
class LockedRun:
    """A run with its session and its session's parent, all locked until the transaction ends."""

    run: DictRow
    session: DictRow
    parent: DictRow | None


async def lock_run(connection: Connection, tenant_id: str, run_id: str) -> LockedRun:
    """Locks parent, session and run in this order, as every writer does that needs more than one; RUN_LEASE_LOST where the run was deleted."""
    parent, session, run = await runs.lock_with_sessions(connection, tenant_id, run_id)
    return LockedRun(run, session, parent)


@dataclass(frozen=True, slots=True)
class Endings:
    """Ends runs and sessions inside a transaction of the caller. What is locked is looked at, and not asked for again by what changes it."""

    job_app: App
    max_run_attempts: int
    metrics: RunMetrics

    async def end_run(
        self,
        connection: Connection,
        tenant_id: str,
        locked: LockedRun,
        ending: Ending,
        *,
        epoch: int | None = None,
        closing: bool = False,
    ) -> AsyncCursor[DictRow] | None:
        """Sets the run's terminal state, tells the parent through its inbox, closes the session where its mode is RUN or it is `closing`, and
        puts the jobs of an ended session into the queue. The run, to be fetched later; None, and nothing done, where it has a terminal state or
        is not held at `epoch`.

        A draft that was being made the answer of a run that ends otherwise is not to be called final: a job sees to that. Where the tenant has
        secrets masked, none is kept of the ending, or told to the parent.

        A session that stays open gets a new run for messages that came while this one was live. Those that were there before had their run: if
        it failed over them, the next message is needed to try again, or it would go on for ever.
        """
        run, session, session_id = locked.run, locked.session, locked.session["session_id"]
        if run["state"] in TERMINAL_RUN_STATES or epoch not in (None, run["epoch"]):
            return None
        run_id = run["run_id"]
        ending, told = await _as_kept(connection, tenant_id, session, ending)
        ended = await runs.begin_end(connection, tenant_id, run_id, ending, epoch=epoch)
        if locked.parent is not None:
            await self._announce(connection, tenant_id, session, locked.parent, run_id, ending, told)
        due = [
            jobs.tell_ended(
                tenant_id,
                session_id,
                run_id=run_id,
                epoch=run["epoch"],
                parent_session_id=session["parent_session_id"],
                outcome=ending.state.lower(),
                traceparent=session["traceparent"],
                withdrawal=await self._withdrawal(connection, tenant_id, run, ending),
            )
        ]
        if closing or session["mode"] == SessionMode.RUN:
            due += await self._close(connection, tenant_id, session)
        else:
            began = run["deadline_time"] - session["run_timeout"]  # One that was given back has a later queue_time.
            if await inbox.count_waiting(connection, tenant_id, session_id, arrived_after=began):
                await self.queue_run(connection, tenant_id, session_id, session["run_timeout"])
        await enqueue(self.job_app, connection, *due)
        self.metrics.ended(ending)
        return ended

    async def _withdrawal(
        self, connection: Connection, tenant_id: str, run: DictRow, ending: Ending
    ) -> jobs.Withdrawal | None:
        """Of the draft that the transcript may call final, where the run does not end with it: under an epoch of its own, which no run has."""
        if run["final_entry_id"] in ("", ending.draft_entry_id):
            return None
        epoch = await sessions.reserve_epoch(connection, tenant_id, run["session_id"])
        return jobs.Withdrawal(run["final_entry_id"], epoch)

    async def close(self, connection: Connection, tenant_id: str, session: DictRow) -> None:
        """ACTIVE -> CLOSED; its files go as its cleanup says."""
        if due := await self._close(connection, tenant_id, session):
            await enqueue(self.job_app, connection, *due)

    async def _close(self, connection: Connection, tenant_id: str, session: DictRow) -> list[DueJob]:
        """What is to be done once the session is CLOSED; nothing where it was not ACTIVE."""
        session_id, trace = session["session_id"], session["traceparent"]
        if session["state"] != SessionState.ACTIVE:
            return []
        await sessions.close(connection, tenant_id, session_id)
        due = [jobs.tell_closed(tenant_id, session_id, trace)]
        if session["receipt"]:
            tenant = await tenants.get(connection, tenant_id)
            retain = bool(tenant["settings"].get("retain_on_session_keep", False))
            if releases_attachments(session["cleanup"], retain_on_session_keep=retain):
                due.append(jobs.release(tenant_id, session_id, trace))
        return due

    async def queue_run(self, connection: Connection, tenant_id: str, session_id: str, run_timeout: timedelta) -> str:
        """Queues a new run of an active session that has none; gives its id. Fetches nothing."""
        run = self.new_run(run_timeout)
        await runs.enqueue(connection, tenant_id, session_id, run)
        return run.run_id

    def new_run(self, run_timeout: timedelta) -> NewRun:
        """With an id of its own, and as many attempts as a run may have."""
        return NewRun(new_id(IdKind.RUN), run_timeout, self.max_run_attempts)

    async def _announce(
        self,
        connection: Connection,
        tenant_id: str,
        child: DictRow,
        parent: DictRow,
        run_id: str,
        ending: Ending,
        told: str,
    ) -> None:
        parent_id = parent["session_id"]
        is_new = await inbox.insert(
            connection,
            tenant_id,
            parent_id,
            announce_key(child["session_id"], run_id),
            told,
            child_session_id=child["session_id"],
            child_run_state=ending.state,
        )
        if not is_new:
            return
        await sessions.append_event(
            connection,
            tenant_id,
            parent_id,
            EventKind.CHILD_ANNOUNCED,
            run_id=run_id,
            run_state=ending.state,
            child_session_id=child["session_id"],
        )
        idle = parent["state"] == SessionState.ACTIVE and parent["mode"] == SessionMode.SESSION
        if idle and await runs.lock_live(connection, tenant_id, parent_id) is None:
            await self.queue_run(connection, tenant_id, parent_id, parent["run_timeout"])


async def _as_kept(connection: Connection, tenant_id: str, session: DictRow, ending: Ending) -> tuple[Ending, str]:
    """The ending, and what the parent is told of it: both without secrets, where the tenant has them masked by now."""
    texts = [session["label"]]
    if not ending.is_masked:
        texts += ending.result_text, ending.error_reason, ending.error_message
    masks = any(may_hold_secret(text) for text in texts) and (
        ending.is_masked or masks_secrets((await tenants.get(connection, tenant_id))["settings"])
    )
    if masks and not ending.is_masked:
        ending = replace(
            ending,
            result_text=await masked(ending.result_text),
            error_reason=await masked(ending.error_reason),
            error_message=await masked(ending.error_message),
            is_masked=True,
        )
    told = announcement(session["session_id"], session["label"], ending)
    return ending, await masked(told) if masks else told
