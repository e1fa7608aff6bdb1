"""Approvals: from their request to their decision."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import kwargs_row
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.bounded_pages import bounded_page, scanned_row
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.approvals import (
    Approval,
    ApprovalState,
    ApprovalSubject,
    ExpiryPolicy,
    NewApproval,
    PersonDecision,
)
from spawnmesh_session.domain.runs import Run
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.store.rows import MAX_LIST_BYTES

MAX_SCANNED_APPROVALS = 1_000
"""Approvals at which a page looks, so that its cost is bounded whatever the filter."""

_SQL = load_statements(__name__)


def approval_of(row: Row) -> Approval:
    """Convert a row of `approvals`."""
    return Approval(
        approval_id=row["approval_id"],
        session_id=row["session_id"],
        run_id=row["run_id"],
        agent_id=row["agent_id"],
        state=ApprovalState(row["state"]),
        subject=ApprovalSubject(
            tool_name=row["tool_name"],
            arguments_json=row["arguments_json"],
            parameters_json=row["parameters_json"],
            question=row["question"],
            choices=tuple(row["choices"]),
        ),
        reason=row["reason"],
        on_expiry=ExpiryPolicy(row["on_expiry"]),
        create_time=row["create_time"],
        expire_time=row["expire_time"],
        escalate_time=row["escalate_time"],
        decide_time=row["decide_time"],
        decided_by=row["decided_by"],
        edited_arguments_json=row["edited_arguments_json"],
        text=row["text"],
        begin_epoch=row["begin_epoch"],
        begin_time=row["begin_time"],
    )


async def insert_approval(
    connection: Connection, tenant_id: str, session: Session, run: Run, new: NewApproval, now: datetime
) -> Approval:
    """Insert a pending approval of a run that is locked, and return it."""
    values = {
        **asdict(new.subject),
        "choices": list(new.subject.choices),
        "tenant_id": tenant_id,
        "approval_id": new.approval_id,
        "session_id": session.session_id,
        "run_id": run.run_id,
        "agent_id": session.agent_id,
        "ancestor_ids": list(session.ancestor_ids),
        "reason": new.reason,
        "on_expiry": new.on_expiry.value,
        "create_time": now,
        "expire_time": now + new.timeout,
    }
    inserted = await _row(connection, "insert_approval", values)
    if inserted is None:
        raise RuntimeError("an insert returned no row")
    return inserted


async def find_approval(connection: Connection, tenant_id: str, approval_id: str) -> Approval | None:
    """Return the approval; None if there is none."""
    return await _row(connection, "get_approval", {"tenant_id": tenant_id, "approval_id": approval_id})


async def get_approval(connection: Connection, tenant_id: str, approval_id: str) -> Approval:
    """Return the approval. Raise NOT_FOUND if there is none."""
    found = await find_approval(connection, tenant_id, approval_id)
    if found is None:
        raise not_found("approval", approval_id)
    return found


async def lock_approval(connection: Connection, tenant_id: str, approval_id: str) -> Approval | None:
    """Lock and return the approval, whose session and run are locked; None if there is none."""
    return await _row(connection, "lock_approval", {"tenant_id": tenant_id, "approval_id": approval_id})


async def decide_approval(
    connection: Connection, tenant_id: str, approval_id: str, decision: PersonDecision, now: datetime
) -> Approval | None:
    """Set the state of a pending approval, and return it; None if it is not pending."""
    values = {
        **asdict(decision),
        "state": decision.state.value,
        "tenant_id": tenant_id,
        "approval_id": approval_id,
        "now": now,
    }
    return await _row(connection, "decide_approval", values)


async def escalate_approval(
    connection: Connection, tenant_id: str, approval_id: str, now: datetime, expire_time: datetime
) -> Approval | None:
    """Let a pending approval wait until another time, once, and return it.

    Return None if it is not pending, has another policy, or was escalated before.
    """
    values = {
        "tenant_id": tenant_id,
        "approval_id": approval_id,
        "now": now,
        "expire_time": expire_time,
    }
    return await _row(connection, "escalate_approval", values)


async def begin_call(
    connection: Connection, tenant_id: str, approval_id: str, epoch: int, now: datetime
) -> Approval | None:
    """Let the runner at the epoch make the call; None if one took it over before."""
    values = {"tenant_id": tenant_id, "approval_id": approval_id, "epoch": epoch, "now": now}
    return await _row(connection, "begin_call", values)


@dataclass(frozen=True, slots=True)
class ApprovalQuery:
    """The approvals to list. An empty text does not filter. A session includes its descendants."""

    state: str = ""
    session_id: str = ""
    agent_id: str = ""
    tool_name: str = ""


@dataclass(frozen=True, slots=True)
class _ListedApproval:
    """An approval, and the bytes of the page up to it."""

    approval: Approval
    page_bytes: int


@dataclass(frozen=True, slots=True)
class ApprovalsPage:
    """Approvals by id. The next page begins after `next_after_id`, empty on the last page."""

    approvals: list[Approval]
    next_after_id: str


async def list_approvals(
    connection: Connection, tenant_id: str, query: ApprovalQuery, *, after_id: str, page_size: int
) -> ApprovalsPage:
    """Return a page of the approvals that the query finds, oldest first.

    The page has fewer, or none, if they are large, or if few of the MAX_SCANNED_APPROVALS at which
    it looks are wanted.
    """
    values = {
        **asdict(query),
        "tenant_id": tenant_id,
        "after_id": after_id,
        "limit": page_size + 1,
        "scan_limit": MAX_SCANNED_APPROVALS,
    }
    statement = list_statement(only_pending=query.state == ApprovalState.PENDING)
    async with connection.cursor(row_factory=kwargs_row(scanned_row(_listed_approval))) as cursor:
        await cursor.execute(statement, values)
        listed, last = bounded_page(await cursor.fetchall(), page_size)
    fitting = [one for one in listed if one is listed[0] or one.page_bytes <= MAX_LIST_BYTES]
    if len(fitting) < len(listed):
        last = fitting[-1]
    return ApprovalsPage([one.approval for one in fitting], last.approval.approval_id if last else "")


def _listed_approval(**columns: Any) -> _ListedApproval:
    return _ListedApproval(approval_of(columns), columns["bytes"] or 0)


def list_statement(*, only_pending: bool) -> str:
    """Return `list_approvals` from the index of the pending approvals, or from that of all."""
    return _SQL["list_approvals"].replace("{source}", "state = 'PENDING'" if only_pending else "true")


async def delete_approvals(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> None:
    """Delete all approvals of the sessions."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    await connection.execute(_SQL["delete_approvals"], values)


async def _row(connection: Connection, name: str, values: Mapping[str, Any]) -> Approval | None:
    row = await (await connection.execute(_SQL[name], values)).fetchone()
    return approval_of(row) if row else None
