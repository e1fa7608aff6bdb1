"""Requests an approval for a runner, and gives the decision to the next runner."""

import asyncio
from dataclasses import dataclass, replace

from spawnmesh_core.errors import MeshError, invalid
from spawnmesh_core.json_text import NotJson
from spawnmesh_core.reasons import Reason
from spawnmesh_core.secrets import mask_document, may_hold_secret
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs.store import enqueue

from spawnmesh_session.domain.approvals import (
    MAX_APPROVAL_COUNT,
    Approval,
    ApprovalState,
    NewApproval,
    secret_not_kept,
)
from spawnmesh_session.domain.runs import CallingRun, Run, RunState, require_lease
from spawnmesh_session.domain.sessions import EventKind
from spawnmesh_session.domain.tenants import masks_secrets
from spawnmesh_session.operations.approval_arguments import require_object
from spawnmesh_session.operations.approval_withdrawal import withdraw_and_queue
from spawnmesh_session.operations.masking import mask_secrets
from spawnmesh_session.operations.parked_runs import require_place
from spawnmesh_session.operations.session_event_jobs import publish_approval_requested
from spawnmesh_session.store import approvals, events, run_queue, runs, sessions, tenants, waiting_runs


@dataclass(frozen=True, slots=True)
class ApprovalRequester:
    """Lets held runs wait for a person, and tells their next runners the decisions."""

    database: Database

    async def request(
        self, tenant_id: str, calling: CallingRun, new: NewApproval
    ) -> tuple[Approval | None, Run]:
        """Request the approval, give the run up, and return both.

        A repeat at the same epoch returns them as they are while the run waits. An interrupted run
        is returned as it is, without an approval: it must end. If an urgent message waits, the
        approval is withdrawn at once. Raise RUN_LEASE_LOST, RUN_STATE for a call whose approval was
        decided, INVALID_REQUEST or SECRET_NOT_KEPT for a call that cannot be kept, and
        RUN_QUEUE_FULL if too many runs of the tenant wait for people.
        """
        if new.subject.tool_name:
            require_object("tool_call.arguments_json", new.subject.arguments_json)
        async with self.database.pipelined(tenant_id) as connection:
            session = await sessions.lock_session(connection, tenant_id, calling.session_id)
            run = await runs.lock_run(connection, tenant_id, calling.run_id)
            existing = await approvals.lock_approval(connection, tenant_id, new.approval_id)
            if existing is not None and run.epoch == calling.epoch and _is_given_up(run, existing):
                return existing, run
            require_lease(run, calling.epoch)
            if run.interrupt_time is not None:
                return None, run
            if existing is not None or run.state is not RunState.RUNNING:
                raise _not_to_ask(run, existing)
            await _require_room(connection, tenant_id, run)
            kept = await _masked(connection, tenant_id, new)
            now = await runs.read_time(connection)
            approval = await approvals.insert_approval(connection, tenant_id, session, run, kept, now)
            run = await waiting_runs.park_run(
                connection, tenant_id, run, approval.approval_id, now, approval.expire_time
            )
            await events.append_event(
                connection,
                tenant_id,
                session.session_id,
                EventKind.RUN,
                run_id=run.run_id,
                run_state=RunState.WAITING_APPROVAL,
                detail=approval.approval_id,
            )
            await enqueue(connection, tenant_id, publish_approval_requested(session, approval))
            await run_queue.notify_runners_of_place(connection, tenant_id)
            if await run_queue.has_urgent_message(connection, tenant_id, session.session_id, run.run_id):
                run = await withdraw_and_queue(connection, tenant_id, session, run)
                approval = await approvals.get_approval(connection, tenant_id, approval.approval_id)
        return approval, run

    async def take(
        self, tenant_id: str, calling: CallingRun, approval_id: str
    ) -> tuple[Approval | None, bool]:
        """Return what was decided, and whether a runner before this one took it over.

        From then on an approved call belongs to the runner at this epoch. Return None if no
        approval was requested. Raise RUN_LEASE_LOST.
        """
        async with self.database.pipelined(tenant_id) as connection:
            run = await runs.lock_run(connection, tenant_id, calling.run_id)
            require_lease(run, calling.epoch)
            approval = await approvals.lock_approval(connection, tenant_id, approval_id)
            if approval is None or approval.state is not ApprovalState.APPROVED:
                return approval, False
            if approval.begin_epoch:
                return approval, approval.begin_epoch != calling.epoch
            now = await runs.read_time(connection)
            return await approvals.begin_call(connection, tenant_id, approval_id, calling.epoch, now), False


async def _require_room(connection: Connection, tenant_id: str, run: Run) -> None:
    """Raise INVALID_REQUEST if the run has requested too many approvals, and RUN_QUEUE_FULL if too
    many runs of the tenant wait.
    """
    if run.approval_count >= MAX_APPROVAL_COUNT:
        raise invalid("call", f"the run has requested {MAX_APPROVAL_COUNT} approvals already")
    await require_place(connection, tenant_id)


def _is_given_up(run: Run, approval: Approval) -> bool:
    """Return whether the run waits for the approval, or was queued as it was withdrawn."""
    is_withdrawn = approval.state is ApprovalState.WITHDRAWN and run.state is RunState.QUEUED
    return run.approval_id == approval.approval_id or is_withdrawn


def _not_to_ask(run: Run, approval: Approval | None) -> MeshError:
    why = f"the approval is {approval.state}; take the decision" if approval else f"the run is {run.state}"
    return MeshError(
        Reason.RUN_STATE,
        f"run {run.run_id} cannot wait for an approval of this call: {why}",
        facts={"run_id": run.run_id, "state": run.state},
    )


async def _masked(connection: Connection, tenant_id: str, new: NewApproval) -> NewApproval:
    """Return the approval without secrets if the tenant masks them.

    Raise SECRET_NOT_KEPT for arguments with one: the call could not be made as it was approved.
    """
    subject = new.subject
    texts = (subject.arguments_json, subject.question, *subject.choices, new.reason)
    if not any(map(may_hold_secret, texts)):
        return new
    if not masks_secrets((await tenants.get_existing_tenant(connection, tenant_id)).settings):
        return new
    await require_no_secret("tool_call.arguments_json", subject.arguments_json)
    choices = tuple([await mask_secrets(choice) for choice in subject.choices])
    kept = replace(subject, question=await mask_secrets(subject.question), choices=choices)
    return replace(new, subject=kept, reason=await mask_secrets(new.reason))


async def require_no_secret(field: str, document: str) -> None:
    """Raise SECRET_NOT_KEPT if the JSON document has what a masking tenant does not keep."""
    if not document:
        return
    try:
        masked = await asyncio.to_thread(mask_document, document)
    except NotJson:  # Or it is nested too deep, or has too many values.
        raise invalid(field, "cannot be searched for secrets; give less at once") from None
    if masked != document:
        raise secret_not_kept(field)
