"""The tasks of the job queue, after a run or a session has ended or begun; each runs at least once.

No task dispatches to plugins of a tenant: what plugins may slow down is in `jobs.event_relay`.
"""

import asyncio
from dataclasses import dataclass

import structlog
from procrastinate import App, BaseRetryStrategy, Blueprint, RetryDecision
from procrastinate.jobs import Job
from spawnmesh.hook.v1.observed_pb2 import (
    ObservedEvent,
    SessionEndEvent,
    SessionStartEvent,
    SubagentSpawnedEvent,
)
from spawnmesh.transcript.v1.transcript_service_pb2 import WriterClaim
from spawnmesh_core.errors import MeshError, error_label, refused_with
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.telemetry import continue_trace, traced

from spawnmesh_session.clients.attachment_sets import AttachmentSets
from spawnmesh_session.clients.hooks import Hooks
from spawnmesh_session.clients.transcripts import Transcripts, superseding_label
from spawnmesh_session.operations import follow_up_jobs
from spawnmesh_session.store import pending_events
from spawnmesh_session.store.pending_events import RunEnded

_MAX_PAUSE_SECONDS = 300
_ATTEMPTS_OF_A_DAY = 300


@dataclass(frozen=True, slots=True)
class Backoff(BaseRetryStrategy):
    """Doubles the pause from 2 s to at most 5 min."""

    max_attempts: int | None = None

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        """Return the time of the next try; None after `max_attempts`. Log the error."""
        is_over = self.max_attempts is not None and job.attempts >= self.max_attempts
        seconds = None if is_over else min(2 ** min(job.attempts + 1, 30), _MAX_PAUSE_SECONDS)
        structlog.get_logger().warning(
            "job_failed",
            job=job.task_name.removeprefix(f"{follow_up_jobs.NAMESPACE}:"),
            tenant=job.task_kwargs.get("tenant_id"),
            session=job.task_kwargs.get("session_id"),
            attempt=job.attempts + 1,
            error=error_label(exception),
            again_in_seconds=seconds,
        )
        return None if seconds is None else RetryDecision(retry_in={"seconds": seconds})


def add_tasks(
    app: App, database: Database, sets: AttachmentSets, transcripts: Transcripts, hooks: Hooks
) -> None:
    """Register the tasks of `operations.follow_up_jobs` with the job queue."""
    blueprint = Blueprint()

    @blueprint.task(name=follow_up_jobs.RELEASE_ATTACHMENTS, retry=Backoff())
    async def release_attachments(tenant_id: str, session_id: str, traceparent: str) -> None:
        with continue_trace(traceparent), impersonate(tenant_id):
            async with traced("release_attachments"):
                await sets.release(derived_id(IdKind.ATTACHMENT_SET, session_id))

    @blueprint.task(name=follow_up_jobs.FINISH_ENDED_RUN, retry=Backoff(max_attempts=_ATTEMPTS_OF_A_DAY))
    async def finish_ended_run(
        tenant_id: str,
        session_id: str,
        run_id: str,
        epoch: int,
        parent_session_id: str,
        outcome: str,
        traceparent: str,
        withdrawn_entry_id: str,
        withdrawal_epoch: int,
    ) -> None:
        event = RunEnded(session_id, run_id, parent_session_id, outcome, traceparent)

        async def release_transcript() -> None:
            if withdrawn_entry_id:
                claim = WriterClaim(run_id=run_id, epoch=withdrawal_epoch)
                await _withdraw_draft(transcripts, session_id, claim, withdrawn_entry_id)
            else:
                await _release_claim(transcripts, session_id, WriterClaim(run_id=run_id, epoch=epoch))

        with continue_trace(traceparent), impersonate(tenant_id):
            async with traced("finish ended run"):
                # Side by side: observers get the event while the transcript service is down.
                steps = [pending_events.insert_pending_event(database, tenant_id, event)]
                if epoch:
                    steps.append(release_transcript())
                for failure in await asyncio.gather(*steps, return_exceptions=True):
                    if failure is not None:
                        raise failure

    @blueprint.task(name=follow_up_jobs.PUBLISH_SPAWN_FAILURE, retry=Backoff(max_attempts=_ATTEMPTS_OF_A_DAY))
    async def publish_spawn_failure(
        tenant_id: str, session_id: str, parent_session_id: str, traceparent: str
    ) -> None:
        event = RunEnded(session_id, "", parent_session_id, follow_up_jobs.SPAWN_FAILED, traceparent)
        with continue_trace(traceparent), impersonate(tenant_id):
            async with traced("publish_spawn_failure"):
                if await hooks.has_allowed_spawn(session_id):
                    await pending_events.insert_pending_event(database, tenant_id, event)

    @blueprint.task(name=follow_up_jobs.PUBLISH_SESSION_START, retry=Backoff(max_attempts=_ATTEMPTS_OF_A_DAY))
    async def publish_session_start(
        tenant_id: str, session_id: str, parent_session_id: str, traceparent: str
    ) -> None:
        events = [
            ObservedEvent(
                event_key=f"session_start:v1:{session_id}",
                session_id=session_id,
                session_start=SessionStartEvent(parent_session_id=parent_session_id),
            )
        ]
        if parent_session_id:
            events.append(
                ObservedEvent(
                    event_key=f"subagent_spawned:v1:{session_id}",
                    session_id=session_id,
                    subagent_spawned=SubagentSpawnedEvent(parent_session_id=parent_session_id),
                )
            )
        with continue_trace(traceparent), impersonate(tenant_id):
            async with traced("publish_session_start"):
                await hooks.publish(events)

    @blueprint.task(name=follow_up_jobs.PUBLISH_SESSION_END, retry=Backoff(max_attempts=_ATTEMPTS_OF_A_DAY))
    async def publish_session_end(tenant_id: str, session_id: str, traceparent: str) -> None:
        event = ObservedEvent(
            event_key=f"session_end:v1:{session_id}", session_id=session_id, session_end=SessionEndEvent()
        )
        with continue_trace(traceparent), impersonate(tenant_id):
            async with traced("publish_session_end"):
                await hooks.publish([event])

    app.add_tasks_from(blueprint, namespace=follow_up_jobs.NAMESPACE)


async def _release_claim(transcripts: Transcripts, session_id: str, claim: WriterClaim) -> None:
    try:
        await transcripts.release(session_id, claim)
    except MeshError as error:
        if not refused_with(error, Reason.NOT_FOUND):  # The session was deleted meanwhile.
            raise


async def _withdraw_draft(
    transcripts: Transcripts, session_id: str, claim: WriterClaim, entry_id: str
) -> None:
    """Take the transcript from the run and supersede the draft, unless a later run has it."""
    try:
        await transcripts.acquire(session_id, claim)
        await transcripts.append(session_id, *superseding_label(entry_id), claim)
    except MeshError as error:
        if not refused_with(error, Reason.NOT_FOUND, Reason.INVALID_REQUEST, Reason.WRITER_CLAIM_LOST):
            raise
    await _release_claim(transcripts, session_id, claim)
