"""The end of a run: everything that is committed with the terminal state, whatever the cause."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spawnmesh_core.secrets import may_hold_secret
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.jobs.job import NewJob
from spawnmesh_postgres.jobs.store import enqueue

from spawnmesh_session.domain.enabled_hooks import RUN_END_HOOKS
from spawnmesh_session.domain.inbox import announcement, announcement_key
from spawnmesh_session.domain.output_sets import published_note
from spawnmesh_session.domain.runs import TERMINAL_RUN_STATES, Run, RunOutcome
from spawnmesh_session.domain.sessions import (
    EventKind,
    Session,
    SessionMode,
    SessionState,
)
from spawnmesh_session.domain.tenants import masks_secrets
from spawnmesh_session.metrics import RunMetrics
from spawnmesh_session.operations import follow_up_jobs
from spawnmesh_session.operations.approval_withdrawal import withdraw_approval
from spawnmesh_session.operations.masking import mask_secrets
from spawnmesh_session.operations.run_queueing import RunQueuer
from spawnmesh_session.operations.run_spans import RunSpan
from spawnmesh_session.operations.session_closing import close_session
from spawnmesh_session.store import events, inbox, output_sets, runs, sessions, tenants
from spawnmesh_session.store.rows import PendingRow
from spawnmesh_session.store.runs import LockedRun

_NAMES_IN_NOTE = 50  # More do not fit into the note.


@dataclass(frozen=True, slots=True)
class RunTerminator:
    """Ends runs inside the caller's transaction, which holds the locks.

    No token of a run is valid for longer than `token_ttl`.
    """

    queuer: RunQueuer
    metrics: RunMetrics
    token_ttl: timedelta

    async def terminate(
        self,
        connection: Connection,
        tenant_id: str,
        locked: LockedRun,
        outcome: RunOutcome,
        *,
        epoch: int | None = None,
        closing: bool = False,
        has_released_writer: bool = False,
    ) -> PendingRow[Run] | None:
        """End the run, announce it to the parent, and enqueue the jobs of the ended run.

        Close the session if its mode is RUN or it is `closing`. Return the run, to be fetched
        later. Return None, and do nothing, if the run has a terminal state or is not held at
        `epoch`.

        - A draft that was decided to be the answer of a run that ends otherwise is withdrawn by a
          job.
        - If the tenant masks secrets, the outcome and the announcement hold none.
        - A session that stays open gets a new run for messages that arrived during this run. Older
          messages had their run: if it failed over them, only the next message tries again, or
          runs would fail for ever. After an interrupt, only messages that came behind it count: a
          person who stops a session does not want it to go on by itself.
        """
        run, session = locked.run, locked.session
        if run.state in TERMINAL_RUN_STATES or epoch not in (None, run.epoch):
            return None
        session_id = session.session_id
        note = await _published_note(connection, tenant_id, locked)
        outcome, text = await _mask(connection, tenant_id, session, outcome, note)
        ended = await runs.end_run(connection, tenant_id, run, outcome, token_ttl=self.token_ttl, epoch=epoch)
        if run.approval_id:
            await withdraw_approval(connection, tenant_id, session, run.approval_id)
        if locked.parent is not None:
            await self._announce(connection, tenant_id, locked.parent, run, outcome, text)
        withdrawal = await _withdrawal(connection, tenant_id, run, outcome)
        due = _jobs_of_end(locked, outcome, withdrawal, has_released_writer=has_released_writer)
        if closing or session.mode == SessionMode.RUN:
            due += await close_session(connection, tenant_id, session, locked.hooks)
        else:
            since = _queued_since(run)
            if await inbox.count_inbox(connection, tenant_id, session_id, arrived_after=since):
                await self.queuer.queue_run(connection, tenant_id, session_id, session.run_timeout)
        await enqueue(connection, tenant_id, *due)
        self.metrics.ended(outcome)
        return ended

    async def _announce(
        self,
        connection: Connection,
        tenant_id: str,
        parent: Session,
        run: Run,
        outcome: RunOutcome,
        text: str,
    ) -> None:
        """Put the result into the parent's inbox, and queue a run of an idle parent to read it."""
        parent_id = parent.session_id
        is_new = await inbox.insert_message(
            connection,
            tenant_id,
            parent_id,
            announcement_key(run.session_id, run.run_id),
            text,
            child_session_id=run.session_id,
            child_run_state=outcome.state,
        )
        if not is_new:
            return
        await events.append_event(
            connection,
            tenant_id,
            parent_id,
            EventKind.CHILD_ANNOUNCED,
            run_id=run.run_id,
            run_state=outcome.state,
            child_session_id=run.session_id,
        )
        is_open = parent.state == SessionState.ACTIVE and parent.mode == SessionMode.SESSION
        if is_open and await runs.lock_live_run(connection, tenant_id, parent_id) is None:
            await self.queuer.queue_run(connection, tenant_id, parent_id, parent.run_timeout)


def _queued_since(run: Run) -> datetime:
    """Return the time after which a message that the run has not read gets a run of its own."""
    if run.interrupt_time is not None:
        return run.interrupt_time
    return run.first_queue_time


def _jobs_of_end(
    locked: LockedRun,
    outcome: RunOutcome,
    withdrawal: follow_up_jobs.DraftWithdrawal | None,
    *,
    has_released_writer: bool,
) -> list[NewJob]:
    """Return the job that releases the transcript, if a runner held the run, and the one that
    publishes the end, if a plugin may be there to hear it. The first of them records the span.

    These are two: observers get the event while the transcript service is down.
    """
    run, session = locked.run, locked.session
    span, was_held, due = RunSpan.of(session, run, outcome), run.epoch > 0, []
    if was_held:
        due.append(
            follow_up_jobs.release_transcript(
                session, run, outcome, span, withdrawal, is_released=has_released_writer
            )
        )
    if not was_held or locked.hooks.has_any(RUN_END_HOOKS):
        due.append(
            follow_up_jobs.publish_run_end(
                session.session_id,
                run_id=run.run_id,
                agent_id=session.agent_id,
                parent_session_id=session.parent_session_id,
                outcome=outcome.state.lower(),
                traceparent=session.traceparent,
                span=None if was_held else span,
            )
        )
    return due


async def _withdrawal(
    connection: Connection, tenant_id: str, run: Run, outcome: RunOutcome
) -> follow_up_jobs.DraftWithdrawal | None:
    """Return the decided draft that the run does not end with, and an epoch to withdraw it."""
    if run.decided_entry_id in ("", outcome.draft_entry_id):
        return None
    epoch = await sessions.reserve_epoch(connection, tenant_id, run.session_id)
    return follow_up_jobs.DraftWithdrawal(run.decided_entry_id, epoch)


async def _published_note(connection: Connection, tenant_id: str, locked: LockedRun) -> str:
    """Return the part of the announcement about published files; empty if there is none."""
    if locked.parent is None or not locked.run.outputs.set_count:
        return ""
    names = await output_sets.list_published_names(connection, tenant_id, locked.run, _NAMES_IN_NOTE)
    return published_note(locked.run, names)


async def _mask(
    connection: Connection, tenant_id: str, session: Session, outcome: RunOutcome, note: str
) -> tuple[RunOutcome, str]:
    """Return the outcome and its announcement, both without secrets if the tenant masks them."""
    texts = [session.label, note]
    if not outcome.is_masked:
        texts += outcome.result_text, outcome.error_message
    masks = any(may_hold_secret(text) for text in texts) and (
        outcome.is_masked
        or masks_secrets((await tenants.get_existing_tenant(connection, tenant_id)).settings)
    )
    if masks and not outcome.is_masked:
        outcome = replace(
            outcome,
            result_text=await mask_secrets(outcome.result_text),
            error_message=await mask_secrets(outcome.error_message),
            is_masked=True,
        )
    text = announcement(session.session_id, session.label, outcome, note)
    return outcome, await mask_secrets(text) if masks else text
