"""Jobs that follow the start or the end of a session or a run. `jobs.tasks` runs them."""

from dataclasses import dataclass

from spawnmesh_postgres.jobs import DueJob

NAMESPACE = "session"
RELEASE_ATTACHMENTS = "release_attachments"
FINISH_ENDED_RUN = "finish_ended_run"
PUBLISH_SPAWN_FAILURE = "publish_spawn_failure"
PUBLISH_SESSION_START = "publish_session_start"
PUBLISH_SESSION_END = "publish_session_end"

SPAWN_FAILED = "spawn_failed"
"""The outcome of a failed spawn in its event."""


@dataclass(frozen=True, slots=True)
class DraftWithdrawal:
    """A draft that the transcript may label final although it is not the answer of its run.

    The epoch, which no run has, is the writer claim that supersedes the draft.
    """

    entry_id: str
    epoch: int


def release_attachments(tenant_id: str, session_id: str, traceparent: str) -> DueJob:
    """Release the session's attachments."""
    return _due(RELEASE_ATTACHMENTS, tenant_id=tenant_id, session_id=session_id, traceparent=traceparent)


def finish_ended_run(
    tenant_id: str,
    session_id: str,
    *,
    run_id: str,
    epoch: int,
    parent_session_id: str,
    outcome: str,
    traceparent: str,
    withdrawal: DraftWithdrawal | None = None,
) -> DueJob:
    """Publish the end of a run or of a failed spawn, and release the run's transcript claim.

    The claim is released whether or not the runner does so. Nothing is written after the end,
    except the label that withdraws a draft.
    """
    return _due(
        FINISH_ENDED_RUN,
        tenant_id=tenant_id,
        session_id=session_id,
        run_id=run_id,
        epoch=epoch,
        parent_session_id=parent_session_id,
        outcome=outcome,
        traceparent=traceparent,
        withdrawn_entry_id=withdrawal.entry_id if withdrawal else "",
        withdrawal_epoch=withdrawal.epoch if withdrawal else 0,
    )


def publish_spawn_failure(
    tenant_id: str, session_id: str, *, parent_session_id: str, traceparent: str
) -> DueJob:
    """Publish the end of a failed spawn if the hook service knows that the plugins allowed it."""
    return _due(
        PUBLISH_SPAWN_FAILURE,
        tenant_id=tenant_id,
        session_id=session_id,
        parent_session_id=parent_session_id,
        traceparent=traceparent,
    )


def publish_session_start(
    tenant_id: str, session_id: str, *, parent_session_id: str, traceparent: str
) -> DueJob:
    """Publish the session's start."""
    return _due(
        PUBLISH_SESSION_START,
        tenant_id=tenant_id,
        session_id=session_id,
        parent_session_id=parent_session_id,
        traceparent=traceparent,
    )


def publish_session_end(tenant_id: str, session_id: str, traceparent: str) -> DueJob:
    """Publish that the session takes no further runs."""
    return _due(PUBLISH_SESSION_END, tenant_id=tenant_id, session_id=session_id, traceparent=traceparent)


def _due(task: str, **arguments: str | int) -> DueJob:
    return DueJob(f"{NAMESPACE}:{task}", arguments)
