"""The decision on an approval, by a person or by the end of its time."""

from dataclasses import dataclass, replace

from spawnmesh_core.secrets import may_hold_secret
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.cpu_workers import INLINE_BYTES, CpuWorkers

from spawnmesh_session.domain.approvals import (
    EXPIRED_RUN,
    Approval,
    ApprovalState,
    ExpiryPolicy,
    PersonDecision,
    closed,
    is_to_escalate,
    require_fitting,
    require_open,
)
from spawnmesh_session.domain.runs import Run
from spawnmesh_session.domain.tenants import masks_secrets
from spawnmesh_session.operations.approval_arguments import require_valid
from spawnmesh_session.operations.approval_closing import close_approval
from spawnmesh_session.operations.approval_escalation import escalate
from spawnmesh_session.operations.approval_requests import require_no_secret
from spawnmesh_session.operations.masking import mask_secrets
from spawnmesh_session.operations.parked_runs import queue_again
from spawnmesh_session.operations.run_termination import RunTerminator
from spawnmesh_session.store import approvals, runs, sessions, tenants
from spawnmesh_session.store.runs import LockedRun

_EXPIRED = PersonDecision(ApprovalState.EXPIRED, decided_by="")


@dataclass(frozen=True, slots=True)
class ApprovalDecider:
    """Decides on pending approvals, once, and lets their runs go on.

    The lock on the run decides a race of two decisions, of the end of the time, of an interrupt and
    of a kill.
    """

    database: Database
    workers: CpuWorkers

    async def decide(
        self, tenant_id: str, approval_id: str, decision: PersonDecision
    ) -> tuple[Approval, Run]:
        """Decide, queue the run, and return both. A repeat by the same person returns them.

        An approval that is to be escalated can be decided until it is, and then until its new end.
        Raise NOT_FOUND, APPROVAL_CLOSED, SECRET_NOT_KEPT, INVALID_REQUEST for a decision that does
        not fit what was asked, and PROCESSING_TIME_EXCEEDED for arguments that are made to be slow.
        """
        async with self.database.pipelined(tenant_id) as connection:
            asked = await approvals.get_approval(connection, tenant_id, approval_id)
            require_fitting(asked, decision)
            decision = await _masked(connection, tenant_id, decision)
        if edited := decision.edited_arguments_json:
            # Small arguments can take long too, so they are never checked in this process.
            await self.workers.run(tenant_id, INLINE_BYTES + 1, require_valid, asked.subject, edited)
        async with self.database.pipelined(tenant_id) as connection:
            session = await sessions.lock_session(connection, tenant_id, asked.session_id)
            run = await runs.lock_run(connection, tenant_id, asked.run_id)
            approval = await approvals.lock_approval(connection, tenant_id, approval_id) or asked
            if not require_open(approval, decision):
                return approval, run
            now = await runs.read_time(connection)
            if approval.expire_time <= now and not is_to_escalate(approval):
                raise closed(approval, ApprovalState.EXPIRED)
            decided = await close_approval(connection, tenant_id, session, approval_id, decision, now)
            queued = await queue_again(connection, tenant_id, run, f"the approval is {decision.state}")
        return decided or approval, queued

    async def expire(
        self, connection: Connection, tenant_id: str, locked: LockedRun, terminator: RunTerminator
    ) -> bool:
        """Decide for a locked run, whose time for a decision is over, or escalate its approval, as
        the policy says.

        Return whether the run ended.
        """
        run, session = locked.run, locked.session
        approval = await approvals.lock_approval(connection, tenant_id, run.approval_id)
        now = await runs.read_time(connection)
        if approval is not None and is_to_escalate(approval):
            await escalate(connection, tenant_id, locked, approval, now)
            return False
        expired = await close_approval(connection, tenant_id, session, run.approval_id, _EXPIRED, now)
        if expired is not None and expired.on_expiry is ExpiryPolicy.FAIL:
            return await terminator.terminate(connection, tenant_id, locked, EXPIRED_RUN) is not None
        await queue_again(connection, tenant_id, run, "the approval is EXPIRED")
        return False


async def _masked(connection: Connection, tenant_id: str, decision: PersonDecision) -> PersonDecision:
    """Return the decision without secrets if the tenant masks them.

    Raise SECRET_NOT_KEPT for edited arguments with one.
    """
    if not may_hold_secret(decision.text) and not may_hold_secret(decision.edited_arguments_json):
        return decision
    if not masks_secrets((await tenants.get_existing_tenant(connection, tenant_id)).settings):
        return decision
    await require_no_secret("approve.arguments_json", decision.edited_arguments_json)
    return replace(decision, text=await mask_secrets(decision.text))
