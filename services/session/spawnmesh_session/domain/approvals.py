"""Approvals: tool calls that wait for a person, and questions to one."""

import hashlib
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from spawnmesh_core.errors import MeshError, invalid
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason

from spawnmesh_session.domain.runs import RunOutcome, RunState

DEFAULT_TIMEOUT = timedelta(hours=24)
"""The time for a decision if the request names none."""


MAX_APPROVAL_COUNT = 1000
"""The approvals that one run may request."""


class ApprovalState(StrEnum):
    """The states of an approval: PENDING, then one of the others, set once."""

    PENDING = "PENDING"
    APPROVED = "APPROVED"
    DENIED = "DENIED"
    ANSWERED = "ANSWERED"
    EXPIRED = "EXPIRED"
    WITHDRAWN = "WITHDRAWN"


class ExpiryPolicy(StrEnum):
    """The policies for a run whose approval was not decided in time."""

    DENY = "DENY"
    FAIL = "FAIL"
    ESCALATE = "ESCALATE"


@dataclass(frozen=True, slots=True)
class ApprovalSubject:
    """A call of a tool with its arguments and their schema, or a question with its choices.

    A question has no `tool_name`.
    """

    tool_name: str = ""
    arguments_json: str = ""
    parameters_json: str = ""
    question: str = ""
    choices: tuple[str, ...] = ()

    @property
    def arguments_sha256(self) -> str:
        """The hash of the arguments, in lower-case hex; empty for a question."""
        return hashlib.sha256(self.arguments_json.encode()).hexdigest() if self.tool_name else ""


@dataclass(frozen=True, slots=True)
class NewApproval:
    """An approval to request: its subject, why, for how long, and what happens then."""

    approval_id: str
    subject: ApprovalSubject
    reason: str
    timeout: timedelta
    on_expiry: ExpiryPolicy


@dataclass(frozen=True, slots=True)
class Approval:
    """An approval. `text` is the reason of a denial, or the answer to a question.

    A runner at `begin_epoch` took over that the call was approved; 0 means that none did.
    `expire_time` was moved at `escalate_time`, if that is set.
    """

    approval_id: str
    session_id: str
    run_id: str
    agent_id: str
    state: ApprovalState
    subject: ApprovalSubject
    reason: str
    on_expiry: ExpiryPolicy
    create_time: datetime
    expire_time: datetime
    escalate_time: datetime | None
    decide_time: datetime | None
    decided_by: str
    edited_arguments_json: str
    text: str
    begin_epoch: int
    begin_time: datetime | None


@dataclass(frozen=True, slots=True)
class PersonDecision:
    """The decision of a person: APPROVED, perhaps with other arguments, DENIED or ANSWERED."""

    state: ApprovalState
    decided_by: str
    edited_arguments_json: str = ""
    text: str = ""


EXPIRED_RUN = RunOutcome(
    state=RunState.FAILED,
    error_reason=Reason.APPROVAL_EXPIRED,
    error_message="the run waited for an approval, and no person decided in time",
)
"""The end of a run whose approval was not decided in time, if that is its policy."""


def approval_id_of(run_id: str, answer_entry_id: str, index: int) -> str:
    """Return the id of the approval of a call, the same for every request of it."""
    return derived_id(IdKind.APPROVAL, f"{run_id}:{index}:{answer_entry_id}")


def require_fitting(approval: Approval, decision: PersonDecision) -> None:
    """Raise INVALID_REQUEST for a decision that the subject of the approval does not have.

    The operation checks edited arguments.
    """
    subject = approval.subject
    if decision.state is ApprovalState.APPROVED and not subject.tool_name:
        raise invalid("approve", "this approval is a question: answer it, or deny it")
    if decision.state is ApprovalState.ANSWERED and subject.tool_name:
        raise invalid("answer", "this approval is a call of a tool: approve it, or deny it")
    if decision.state is ApprovalState.ANSWERED and subject.choices and decision.text not in subject.choices:
        choices = ", ".join(map(repr, subject.choices))
        raise invalid("answer.text", f"is none of the choices: {choices}")


def require_open(approval: Approval, decision: PersonDecision) -> bool:
    """Return True if the approval is pending, and False if it has exactly this decision.

    Raise APPROVAL_CLOSED otherwise.
    """
    if approval.state is ApprovalState.PENDING:
        return True
    decided = (approval.state, approval.decided_by, approval.edited_arguments_json, approval.text)
    if decided == astuple(decision):
        return False
    raise closed(approval, approval.state)


def is_to_escalate(approval: Approval) -> bool:
    """Return whether the end of the approval's time escalates it, and does not close it."""
    is_pending = approval.state is ApprovalState.PENDING
    return is_pending and approval.on_expiry is ExpiryPolicy.ESCALATE and approval.escalate_time is None


def end_of_second_wait(approval: Approval, now: datetime) -> datetime:
    """Return when an approval that is escalated now expires: it waits for as long again."""
    return now + (approval.expire_time - approval.create_time)


def closed(approval: Approval, state: ApprovalState) -> MeshError:
    """Build the refusal of a decision on an approval that is in this state."""
    by = f" by {approval.decided_by}" if approval.decided_by else ""
    return MeshError(
        Reason.APPROVAL_CLOSED,
        f"approval {approval.approval_id} is {state}{by} already; the decision was not taken",
        facts={
            "approval_id": approval.approval_id,
            "state": state.value,
            "decided_by": approval.decided_by,
        },
    )


def secret_not_kept(field: str) -> MeshError:
    """Build the refusal of arguments with a secret, which the tenant masks."""
    return MeshError(
        Reason.SECRET_NOT_KEPT,
        f"{field} holds a secret, and this tenant's secrets are not kept; leave the secret out",
        facts={"field": field},
    )
