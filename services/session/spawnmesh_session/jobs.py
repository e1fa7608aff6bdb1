"""What happens after a run or a session has ended, at least once each: claims given up, files released, observers told.

No plugin of a tenant is asked here: what they may slow down has places of its own, in `operations.tell_ends`.
"""

import asyncio
from dataclasses import dataclass

import structlog
from procrastinate import App, BaseRetryStrategy, Blueprint, RetryDecision
from procrastinate.jobs import Job
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent, SessionEndEvent, SessionStartEvent, SubagentSpawnedEvent
from spawnmesh.transcript.v1.transcript_service_pb2 import WriterClaim
from spawnmesh_core.errors import MeshError, name_of, refused_with
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs import DueJob
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.telemetry import continue_trace, traced

from spawnmesh_session.labels import withdrawal_of
from spawnmesh_session.peers import AttachmentSets, Hooks, Transcripts
from spawnmesh_session.store import untold
from spawnmesh_session.store.untold import UntoldEnd

_PREFIX = "session"
_LONGEST_PAUSE_SECONDS = 300
_A_DAY_OF_PAUSES = 300


@dataclass(frozen=True, slots=True)
class Retry(BaseRetryStrategy):
    """Pauses that double from 2 s and stay short enough to be over soon after a peer is back."""

    max_attempts: int | None = None

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        """When to try again; None after `max_attempts`. Tells the log why."""
        is_over = self.max_attempts is not None and job.attempts >= self.max_attempts
        seconds = None if is_over else min(2 ** min(job.attempts + 1, 30), _LONGEST_PAUSE_SECONDS)
        structlog.get_logger().warning(
            "job_failed",
            job=job.task_name.removeprefix(f"{_PREFIX}:"),
            tenant=job.task_kwargs.get("tenant_id"),
            session=job.task_kwargs.get("session_id"),
            attempt=job.attempts + 1,
            error=name_of(exception),
            again_in_seconds=seconds,
        )
        return None if seconds is None else RetryDecision(retry_in={"seconds": seconds})


def release(tenant_id: str, session_id: str, traceparent: str) -> DueJob:
    """Releases the session's attachments."""
    return _due("release_attachments", tenant_id=tenant_id, session_id=session_id, traceparent=traceparent)


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A draft that the transcript may call final and that is not the answer of its run, and the epoch at which it is told so."""

    entry_id: str
    epoch: int

    def as_arguments(self) -> dict[str, str | int]:
        """As the job has them."""
        return {"withdrawn_entry_id": self.entry_id, "withdrawal_epoch": self.epoch}


def tell_ended(
    tenant_id: str,
    session_id: str,
    *,
    run_id: str,
    epoch: int,
    parent_session_id: str,
    outcome: str,
    traceparent: str,
    withdrawal: Withdrawal | None = None,
) -> DueJob:
    """Has observers told of the end of the run, or of the spawn that failed. Gives up the transcript's claim of a run that was held, whether
    or not its runner does so, or can: nothing is written behind the end but the withdrawal, if there is one.
    """
    more = (
        withdrawal.as_arguments() if withdrawal else {}
    )  # None for a worker of the release before, which knows of none.
    return _due(
        "tell_subagent_ended",
        tenant_id=tenant_id,
        session_id=session_id,
        run_id=run_id,
        epoch=epoch,
        parent_session_id=parent_session_id,
        outcome=outcome,
        traceparent=traceparent,
        **more,
    )


def tell_started(tenant_id: str, session_id: str, *, parent_session_id: str, traceparent: str) -> DueJob:
    """Tells the observers of the session's start."""
    return _due(
        "tell_session_start",
        tenant_id=tenant_id,
        session_id=session_id,
        parent_session_id=parent_session_id,
        traceparent=traceparent,
    )


def tell_closed(tenant_id: str, session_id: str, traceparent: str) -> DueJob:
    """Tells the observers that the session takes no further runs."""
    return _due("tell_session_end", tenant_id=tenant_id, session_id=session_id, traceparent=traceparent)


def _due(task: str, **arguments: str | int) -> DueJob:
    return DueJob(f"{_PREFIX}:{task}", arguments)


def add_tasks(app: App, database: Database, sets: AttachmentSets, transcripts: Transcripts, hooks: Hooks) -> None:
    """Gives the queue's worker what it needs to work on the jobs."""
    blueprint = Blueprint()

    @blueprint.task(name="release_attachments", retry=Retry())
    async def release_attachments(tenant_id: str, session_id: str, traceparent: str) -> None:
        with continue_trace(traceparent), acting_for(tenant_id):
            async with traced("release_attachments"):
                await sets.release(derived_id(IdKind.ATTACHMENT_SET, session_id))

    async def give_up_claim(session_id: str, run_id: str, epoch: int) -> None:
        try:
            await transcripts.release(session_id, WriterClaim(run_id=run_id, epoch=epoch))
        except MeshError as error:
            if not refused_with(error, Reason.NOT_FOUND):  # Deleted meanwhile.
                raise

    async def withdraw(session_id: str, run_id: str, withdrawal: Withdrawal) -> None:
        """Takes the transcript from the run and says that the draft is not the answer; nothing where a run that came later has it by now."""
        claim = WriterClaim(run_id=run_id, epoch=withdrawal.epoch)
        try:
            await transcripts.acquire(session_id, claim)
            await transcripts.append(session_id, *withdrawal_of(withdrawal.entry_id), claim)
        except MeshError as error:
            if not refused_with(error, Reason.NOT_FOUND, Reason.INVALID_REQUEST, Reason.WRITER_CLAIM_LOST):
                raise
        await give_up_claim(session_id, run_id, withdrawal.epoch)

    @blueprint.task(name="release_writer", retry=Retry(max_attempts=_A_DAY_OF_PAUSES))  # Of the version before.
    async def release_writer(tenant_id: str, session_id: str, run_id: str, epoch: int, traceparent: str) -> None:
        with continue_trace(traceparent), acting_for(tenant_id):
            async with traced("release_writer"):
                await give_up_claim(session_id, run_id, epoch)

    @blueprint.task(name="tell_subagent_ended", retry=Retry(max_attempts=_A_DAY_OF_PAUSES))
    async def tell_subagent_ended(
        tenant_id: str,
        session_id: str,
        run_id: str,
        parent_session_id: str,
        outcome: str,
        traceparent: str,
        epoch: int = 0,  # As the version before has it.
        withdrawn_entry_id: str = "",
        withdrawal_epoch: int = 0,
    ) -> None:
        end = UntoldEnd(session_id, run_id, parent_session_id, outcome, traceparent)

        async def leave_transcript() -> None:
            if withdrawn_entry_id:
                await withdraw(session_id, run_id, Withdrawal(withdrawn_entry_id, withdrawal_epoch))
            else:
                await give_up_claim(session_id, run_id, epoch)

        with continue_trace(traceparent), acting_for(tenant_id):
            async with traced("after end"):
                # Neither waits for the other, and observers hear although the transcript's service is down.
                handing_over = untold.insert(database, tenant_id, end)
                steps = [handing_over, leave_transcript()] if epoch else [handing_over]
                for failure in await asyncio.gather(*steps, return_exceptions=True):
                    if failure is not None:
                        raise failure

    @blueprint.task(name="tell_session_start", retry=Retry(max_attempts=_A_DAY_OF_PAUSES))
    async def tell_session_start(tenant_id: str, session_id: str, parent_session_id: str, traceparent: str) -> None:
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
        with continue_trace(traceparent), acting_for(tenant_id):
            async with traced("tell_session_start"):
                await hooks.publish(events)

    @blueprint.task(name="tell_session_end", retry=Retry(max_attempts=_A_DAY_OF_PAUSES))
    async def tell_session_end(tenant_id: str, session_id: str, traceparent: str) -> None:
        event = ObservedEvent(
            event_key=f"session_end:v1:{session_id}", session_id=session_id, session_end=SessionEndEvent()
        )
        with continue_trace(traceparent), acting_for(tenant_id):
            async with traced("tell_session_end"):
                await hooks.publish([event])

    app.add_tasks_from(blueprint, namespace=_PREFIX)
