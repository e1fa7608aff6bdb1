"""The end of an approval's wait: it gets a state that does not change any more."""

from datetime import datetime

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.jobs.store import enqueue

from spawnmesh_session.domain.approvals import Approval, PersonDecision
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.operations.session_event_jobs import publish_approval_decided
from spawnmesh_session.store import approvals


async def close_approval(
    connection: Connection,
    tenant_id: str,
    session: Session,
    approval_id: str,
    decision: PersonDecision,
    now: datetime,
) -> Approval | None:
    """Set the state of a pending approval, publish it, and return the approval.

    Return None, and publish nothing, if the approval is not pending. Its session and its run are
    locked.
    """
    decided = await approvals.decide_approval(connection, tenant_id, approval_id, decision, now)
    if decided is not None:
        await enqueue(connection, tenant_id, publish_approval_decided(session, decided, now))
    return decided
