"""Jobs that follow the start or the end of a session or a run. `jobs.kinds` runs them.

Each is built as it happens: the time of an event is that at which its job was built.
"""

from dataclasses import dataclass

from spawnmesh_core.clock import utc_now
from spawnmesh_postgres.jobs.job import NewJob

from spawnmesh_session.domain import job_kinds
from spawnmesh_session.domain.runs import Run, RunOutcome
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.operations.run_spans import RunSpan

SPAWN_FAILED = "spawn_failed"
"""The outcome of a failed spawn in its event."""


@dataclass(frozen=True, slots=True)
class DraftWithdrawal:
    """A draft that the transcript may label final although it is not the answer of its run.

    The epoch, which no run has, is the writer claim that supersedes the draft.
    """

    entry_id: str
    epoch: int


def release_attachments(session_id: str, traceparent: str) -> NewJob:
    """Release the session's attachments."""
    return NewJob(job_kinds.RELEASE_ATTACHMENTS, session_id, traceparent=traceparent)


def release_transcript(
    session: Session,
    run: Run,
    outcome: RunOutcome,
    span: RunSpan,
    withdrawal: DraftWithdrawal | None = None,
    *,
    is_released: bool = False,
) -> NewJob:
    """Release the transcript claim of an ended run, whether or not the runner does so, unless the
    label of its answer has released it; and record the span of the run.

    Nothing is written after the end, except the label that withdraws a draft.
    """
    return NewJob(
        job_kinds.RELEASE_TRANSCRIPT,
        run.run_id,
        {
            "session_id": session.session_id,
            "epoch": run.epoch,
            "is_released": is_released,
            "outcome": outcome.state.lower(),
            "withdrawn_entry_id": withdrawal.entry_id if withdrawal else "",
            "withdrawal_epoch": withdrawal.epoch if withdrawal else 0,
            **span.to_arguments(),
        },
        session.traceparent,
    )


def publish_run_end(
    session_id: str,
    *,
    run_id: str,
    agent_id: str,
    parent_session_id: str,
    outcome: str,
    traceparent: str,
    span: RunSpan | None = None,
) -> NewJob:
    """Publish the end of a run and record its span, or publish the end of a failed spawn, which has
    no run and no span.
    """
    return NewJob(
        job_kinds.PUBLISH_RUN_END,
        run_id or session_id,
        {
            "session_id": session_id,
            "run_id": run_id,
            "agent_id": agent_id,
            "parent_session_id": parent_session_id,
            "outcome": outcome,
            "event_time": _now(),
            **(span.to_arguments() if span else {}),
        },
        traceparent,
    )


def publish_spawn_failure(
    session_id: str, *, agent_id: str, parent_session_id: str, traceparent: str
) -> NewJob:
    """Publish the end of a failed spawn if the hook service knows that the plugins allowed it."""
    return NewJob(
        job_kinds.PUBLISH_SPAWN_FAILURE,
        session_id,
        {
            "session_id": session_id,
            "run_id": "",
            "agent_id": agent_id,
            "parent_session_id": parent_session_id,
            "outcome": SPAWN_FAILED,
            "event_time": _now(),
        },
        traceparent,
    )


def publish_session_start(
    session_id: str, *, agent_id: str, parent_session_id: str, traceparent: str
) -> NewJob:
    """Publish the session's start."""
    return NewJob(
        job_kinds.PUBLISH_SESSION_START,
        session_id,
        {"agent_id": agent_id, "parent_session_id": parent_session_id, "event_time": _now()},
        traceparent,
    )


def publish_session_end(session: Session) -> NewJob:
    """Publish that the session takes no further runs."""
    arguments = {"agent_id": session.agent_id, "event_time": _now()}
    return NewJob(job_kinds.PUBLISH_SESSION_END, session.session_id, arguments, session.traceparent)


def _now() -> str:
    return utc_now().isoformat()
