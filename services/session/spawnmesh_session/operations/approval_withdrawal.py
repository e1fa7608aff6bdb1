"""The withdrawal of an approval whose run does not wait for it any more."""

from spawnmesh_postgres.database import Connection

from spawnmesh_session.domain.approvals import ApprovalState, PersonDecision
from spawnmesh_session.domain.runs import Run
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.operations.approval_closing import close_approval
from spawnmesh_session.operations.parked_runs import queue_again
from spawnmesh_session.store import runs

_WITHDRAWN = PersonDecision(ApprovalState.WITHDRAWN, decided_by="")


async def withdraw_approval(
    connection: Connection, tenant_id: str, session: Session, approval_id: str
) -> None:
    """Withdraw the approval if it is pending. Its session and its run are locked."""
    now = await runs.read_time(connection)
    await close_approval(connection, tenant_id, session, approval_id, _WITHDRAWN, now)


async def withdraw_and_queue(connection: Connection, tenant_id: str, session: Session, run: Run) -> Run:
    """Withdraw the approval for which the locked run waits, and queue the run."""
    await withdraw_approval(connection, tenant_id, session, run.approval_id)
    return await queue_again(connection, tenant_id, run, "the approval was withdrawn")
