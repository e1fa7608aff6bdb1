"""Jobs that publish changes of sessions to observers. `jobs.session_events` runs them.

Each is enqueued in the transaction of its change. Its key is the name of the event in
`ObservedEvent` and the identity of the change, and its arguments are the fields of the event: ids,
times and counts, never content.
"""

from datetime import datetime

from spawnmesh_postgres.jobs.job import JobArguments, NewJob

from spawnmesh_session.domain.approvals import Approval
from spawnmesh_session.domain.budgets import FamilyBudget
from spawnmesh_session.domain.job_kinds import PUBLISH_SESSION_EVENT
from spawnmesh_session.domain.output_sets import OutputSet
from spawnmesh_session.domain.runs import Run
from spawnmesh_session.domain.sessions import Session


def publish_approval_requested(session: Session, approval: Approval) -> NewJob:
    """Publish that the run of the approval waits for a person."""
    fields = {
        "approval_id": approval.approval_id,
        "tool_name": approval.subject.tool_name,
        "expire_time": approval.expire_time.isoformat(),
    }
    key = f"approval_requested:{approval.approval_id}"
    return _publish(key, session, approval.create_time, fields, run_id=approval.run_id)


def publish_approval_escalated(session: Session, approval: Approval, escalate_time: datetime) -> NewJob:
    """Publish that no person decided in time, and that the run waits for as long again."""
    fields = {
        "approval_id": approval.approval_id,
        "tool_name": approval.subject.tool_name,
        "expire_time": approval.expire_time.isoformat(),
    }
    key = f"approval_escalated:{approval.approval_id}"
    return _publish(key, session, escalate_time, fields, run_id=approval.run_id)


def publish_approval_decided(session: Session, approval: Approval, decide_time: datetime) -> NewJob:
    """Publish the state of an approval that was pending until now."""
    fields = {
        "approval_id": approval.approval_id,
        "tool_name": approval.subject.tool_name,
        "state": approval.state.value,
        "decided_by": approval.decided_by,
    }
    key = f"approval_decided:{approval.approval_id}"
    return _publish(key, session, decide_time, fields, run_id=approval.run_id)


def publish_budget_reached(
    session: Session, run: Run, reached: FamilyBudget, reach_time: datetime, expire_time: datetime
) -> NewJob:
    """Publish that the run waits for the budget until `expire_time`.

    A run that goes on to wait for another budget publishes that too, at the same epoch.
    """
    fields = {"budget_session_id": reached.session_id, "expire_time": expire_time.isoformat()}
    key = f"budget_reached:{run.run_id}:{run.epoch}:{reached.session_id}:{reached.version}"
    return _publish(key, session, reach_time, fields, run_id=run.run_id)


def publish_budget_changed(session: Session, changed: FamilyBudget, change_time: datetime) -> NewJob:
    """Publish that the limits of the session's budget were changed."""
    key = f"budget_changed:{changed.session_id}:{changed.version}"
    return _publish(key, session, change_time, {"changed_by": changed.updated_by})


def publish_files_published(session: Session, published: OutputSet) -> NewJob:
    """Publish that a run has published files."""
    fields: JobArguments = {
        "set_id": published.set_id,
        "file_count": len(published.files),
        "total_bytes": published.total_bytes,
    }
    key = f"files_published:{published.set_id}"
    return _publish(key, session, published.publish_time, fields, run_id=published.run_id)


def _publish(
    key: str, session: Session, event_time: datetime, fields: JobArguments, *, run_id: str = ""
) -> NewJob:
    arguments = {
        "session_id": session.session_id,
        "run_id": run_id,
        "agent_id": session.agent_id,
        "event_time": event_time.isoformat(),
        **fields,
    }
    return NewJob(PUBLISH_SESSION_EVENT, key, arguments, session.traceparent)
