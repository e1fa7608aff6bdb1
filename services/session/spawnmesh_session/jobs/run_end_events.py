"""The events of ended runs, which observers get with the delivery target that plugins name.

Plugins may be slow. So these jobs have their own concurrency limits, and delay no other work.
"""

from dataclasses import dataclass
from datetime import timedelta

import structlog
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetEvent
from spawnmesh.hook.v1.end_outcome_pb2 import EndOutcome
from spawnmesh.hook.v1.observed_pb2 import AgentEndEvent, ObservedEvent, SubagentEndedEvent
from spawnmesh_core.errors import MeshError, error_label, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.job import Again, ClaimedJob

from spawnmesh_session.clients.hooks import Hooks
from spawnmesh_session.domain.enabled_hooks import RUN_END_HOOKS, Hook
from spawnmesh_session.jobs.session_events import event_time_of
from spawnmesh_session.operations.run_spans import record_span_of
from spawnmesh_session.store.enabled_hooks import get_enabled_hooks

PLUGIN_TRIES = 3
"""Plugins may fail so often before the event is published without a delivery target."""

_AGAIN_IN = timedelta(seconds=5)
_FAILURES = "plugin_failures"
_ASKED_BEFORE = "asked_before"


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The end of a run, or of a failed spawn, which has no run."""

    session_id: str
    run_id: str
    agent_id: str
    parent_session_id: str
    outcome: str


@dataclass(frozen=True, slots=True)
class RunEndPublisher:
    """Publishes ends of runs and of failed spawns, each at least once."""

    database: Database
    hooks: Hooks

    async def publish_run_end(self, job: ClaimedJob) -> Again | None:
        """Publish the end to observers, if there may be some, and record the span of a run that no
        runner held.

        If plugins fail, try again later; the last try goes without target.
        """
        ended = RunEnded(**{name: job.arguments[name] for name in RunEnded.__dataclass_fields__})
        is_first = job.attempt == 1 and _FAILURES not in job.arguments
        if is_first:
            record_span_of(job, ended.run_id)
        enabled = await get_enabled_hooks(self.database, job.tenant_id)
        if not enabled.has_any(RUN_END_HOOKS):
            if not is_first:
                record_span_of(job, ended.run_id)
            return None
        failures = int(job.arguments.get(_FAILURES, 0))
        try:
            target = await self._target(ended) if Hook.DELIVERY_TARGET in enabled else ""
        except MeshError as error:
            if not _is_of_plugins(error):
                raise
            failures += 1
            log = structlog.get_logger().bind(tenant=job.tenant_id, session=ended.session_id)
            if failures < PLUGIN_TRIES:
                label = error_label(error)
                log.warning("delivery_target_failed", error=label, failures=failures)
                return Again(_AGAIN_IN, {**job.arguments, _FAILURES: failures}, label)
            log.warning("event_delivered_without_target", error=error_label(error))
            target = ""
        await self.hooks.publish(_observed(ended, target, event_time_of(job)))
        if not is_first:
            # The worker of the first attempt may have been lost. Twice is the same span twice.
            record_span_of(job, ended.run_id)
        return None

    async def publish_spawn_failure(self, job: ClaimedJob) -> Again | None:
        """Publish the end of a failed spawn if plugins allowed the spawn.

        The first no may come before the answer of a plugin is stored: hook may still be calling
        plugins, or its database may be slow. So it is asked again when that has ended.
        """
        enabled = await get_enabled_hooks(self.database, job.tenant_id)
        if Hook.SUBAGENT_ENDED not in enabled:
            return None
        if await self.hooks.has_allowed_spawn(job.arguments["session_id"]):
            return await self.publish_run_end(job)
        if job.arguments.get(_ASKED_BEFORE):
            return None
        after = timedelta(seconds=self.hooks.spawn_seconds)
        return Again(after, {**job.arguments, _ASKED_BEFORE: True}, "no plugin has allowed the spawn so far")

    async def _target(self, ended: RunEnded) -> str:
        request = DeliveryTargetEvent(
            session_id=ended.session_id,
            run_id=ended.run_id,
            parent_session_id=ended.parent_session_id,
            outcome=render_outcome(ended.outcome),
        )
        return await self.hooks.delivery_target(request)


def _is_of_plugins(error: MeshError) -> bool:
    """Return whether the tenant's plugins failed or were slow, and not the hook service."""
    return refused_with(error, Reason.PLUGIN_FAILED, Reason.DEADLINE_EXCEEDED)


def render_outcome(outcome: str) -> EndOutcome.ValueType:
    """Return the outcome that a job names in lower case."""
    return EndOutcome.Value(f"END_OUTCOME_{outcome.upper()}")


def _observed(event: RunEnded, target: str, event_time: Timestamp) -> list[ObservedEvent]:
    ended = SubagentEndedEvent(
        parent_session_id=event.parent_session_id,
        outcome=render_outcome(event.outcome),
        delivery_target=target,
    )
    observed = [
        ObservedEvent(
            event_key=f"subagent_ended:v1:{event.session_id}:{event.run_id}",
            event_time=event_time,
            session_id=event.session_id,
            run_id=event.run_id,
            agent_id=event.agent_id,
            subagent_ended=ended,
        )
    ]
    if event.run_id:
        observed.append(
            ObservedEvent(
                event_key=f"agent_end:v1:{event.session_id}:{event.run_id}",
                event_time=event_time,
                session_id=event.session_id,
                run_id=event.run_id,
                agent_id=event.agent_id,
                agent_end=AgentEndEvent(outcome=render_outcome(event.outcome)),
            )
        )
    return observed
