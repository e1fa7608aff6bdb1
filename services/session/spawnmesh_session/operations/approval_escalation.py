"""The escalation of an approval that was not decided in time: its run waits for as long again."""

from datetime import datetime

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.jobs.store import enqueue

from spawnmesh_session.domain.approvals import Approval, end_of_second_wait
from spawnmesh_session.domain.runs import RunState
from spawnmesh_session.domain.sessions import EventKind
from spawnmesh_session.operations.session_event_jobs import publish_approval_escalated
from spawnmesh_session.store import approvals, events, waiting_runs
from spawnmesh_session.store.runs import LockedRun


async def escalate(
    connection: Connection, tenant_id: str, locked: LockedRun, approval: Approval, now: datetime
) -> None:
    """Let the locked run wait for as long again from now, and publish it.

    The approval is locked, and it is to be escalated.
    """
    expire_time = end_of_second_wait(approval, now)
    escalated = await approvals.escalate_approval(
        connection, tenant_id, approval.approval_id, now, expire_time
    )
    if escalated is None:
        raise RuntimeError("an approval that was locked and pending was not escalated")
    await waiting_runs.wait_longer(connection, tenant_id, locked.run, expire_time)
    await events.append_event(
        connection,
        tenant_id,
        locked.run.session_id,
        EventKind.RUN,
        run_id=locked.run.run_id,
        run_state=RunState.WAITING_APPROVAL,
        detail=f"{approval.approval_id} was escalated",
    )
    await enqueue(connection, tenant_id, publish_approval_escalated(locked.session, escalated, now))
