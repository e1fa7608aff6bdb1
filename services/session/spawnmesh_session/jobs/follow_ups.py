"""The handlers of jobs that follow the start or the end of a session, and call no plugin."""

from dataclasses import dataclass

from spawnmesh.hook.v1.observed_pb2 import (
    ObservedEvent,
    SessionEndEvent,
    SessionStartEvent,
    SubagentSpawnedEvent,
)
from spawnmesh.transcript.v1.transcript_service_pb2 import WriterClaim
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.job import ClaimedJob

from spawnmesh_session.clients.attachment_sets import AttachmentSets
from spawnmesh_session.clients.hooks import Hooks
from spawnmesh_session.clients.transcripts import Transcripts, superseding_label
from spawnmesh_session.domain.enabled_hooks import Hook
from spawnmesh_session.jobs.session_events import event_time_of
from spawnmesh_session.operations.run_spans import record_span_of
from spawnmesh_session.store.enabled_hooks import get_enabled_hooks


@dataclass(frozen=True, slots=True)
class FollowUps:
    """Handles the jobs of `operations.follow_up_jobs`, except the events of ended runs."""

    database: Database
    sets: AttachmentSets
    transcripts: Transcripts
    hooks: Hooks

    async def release_attachments(self, job: ClaimedJob) -> None:
        """Release the attachments of a session."""
        await self.sets.release(derived_id(IdKind.ATTACHMENT_SET, job.key))

    async def release_transcript(self, job: ClaimedJob) -> None:
        """Record the span of an ended run and release its writer claim, unless it is released;
        withdraw the draft of which it is told.
        """
        session_id, run_id, arguments = job.arguments["session_id"], job.key, job.arguments
        if job.attempt == 1:
            record_span_of(job, run_id)
        if arguments["withdrawn_entry_id"]:
            claim = WriterClaim(run_id=run_id, epoch=arguments["withdrawal_epoch"])
            await self._withdraw_draft(session_id, claim, arguments["withdrawn_entry_id"])
        else:
            claim = WriterClaim(run_id=run_id, epoch=arguments["epoch"])
        if not arguments["is_released"]:
            await self._release_claim(session_id, claim)
        if job.attempt > 1:
            # The worker of the first attempt may have been lost. Twice is the same span twice.
            record_span_of(job, run_id)

    async def publish_session_start(self, job: ClaimedJob) -> None:
        """Publish the start of a session, and that its parent spawned it."""
        session_id, parent_id = job.key, job.arguments["parent_session_id"]
        event_time = event_time_of(job)
        events = [
            ObservedEvent(
                event_key=f"session_start:v1:{session_id}",
                event_time=event_time,
                session_id=session_id,
                agent_id=job.arguments["agent_id"],
                session_start=SessionStartEvent(parent_session_id=parent_id),
            )
        ]
        if parent_id:
            events.append(
                ObservedEvent(
                    event_key=f"subagent_spawned:v1:{session_id}",
                    event_time=event_time,
                    session_id=session_id,
                    agent_id=job.arguments["agent_id"],
                    subagent_spawned=SubagentSpawnedEvent(parent_session_id=parent_id),
                )
            )
        await self.hooks.publish(events)

    async def publish_session_end(self, job: ClaimedJob) -> None:
        """Publish that a session takes no further runs, if a plugin may be there to hear it."""
        if Hook.SESSION_END not in await get_enabled_hooks(self.database, job.tenant_id):
            return
        event = ObservedEvent(
            event_key=f"session_end:v1:{job.key}",
            event_time=event_time_of(job),
            session_id=job.key,
            agent_id=job.arguments["agent_id"],
            session_end=SessionEndEvent(),
        )
        await self.hooks.publish([event])

    async def _withdraw_draft(self, session_id: str, claim: WriterClaim, entry_id: str) -> None:
        """Take the transcript from the run and supersede the draft, unless a later run has it."""
        try:
            await self.transcripts.acquire(session_id, claim)
            await self.transcripts.append(session_id, *superseding_label(entry_id), claim)
        except MeshError as error:
            if not refused_with(error, Reason.NOT_FOUND, Reason.INVALID_REQUEST, Reason.WRITER_CLAIM_LOST):
                raise

    async def _release_claim(self, session_id: str, claim: WriterClaim) -> None:
        try:
            await self.transcripts.release(session_id, claim)
        except MeshError as error:
            if not refused_with(error, Reason.NOT_FOUND):  # The session was deleted meanwhile.
                raise
