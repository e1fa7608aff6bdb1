"""Views of approvals: tool calls and questions that wait for a person.

The fields are named as in the contracts, which say what each one means. Times are in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import auto
from typing import Any

from spawnmesh_client.view_of import Word


class ApprovalState(Word):
    """The states of an approval."""

    UNKNOWN = auto()
    PENDING = auto()
    APPROVED = auto()
    DENIED = auto()
    ANSWERED = auto()
    EXPIRED = auto()
    WITHDRAWN = auto()


class ExpiryPolicy(Word):
    """The fate of a run whose approval no person decided in time."""

    UNKNOWN = auto()
    DENY = auto()
    FAIL = auto()
    ESCALATE = auto()


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """The calls of an agent's tools that a person must approve.

    `tools` are names, and beginnings of names that end in `*`. Without a timeout, a call and a
    question wait for 24 hours; without `on_expiry`, the call is denied then. With the policy
    ESCALATE it waits once more for as long, and webhooks hear of it.
    """

    tools: tuple[str, ...] = ()
    destructive_mcp_tools: bool = False
    timeout: timedelta | None = None
    on_expiry: ExpiryPolicy | None = None


@dataclass(frozen=True, slots=True)
class ToolCallSubject:
    """The call of a tool that needs an approval.

    `arguments` and `parameters`, the JSON Schema of the arguments, are the parsed texts beside
    them; None for a text that is no JSON object.
    """

    tool_name: str
    arguments: Mapping[str, Any] | None
    arguments_json: str
    arguments_sha256: str
    parameters: Mapping[str, Any] | None
    parameters_json: str


@dataclass(frozen=True, slots=True)
class Question:
    """The question of an agent. Without choices, any text is an answer."""

    text: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Approval:
    """A tool call that waits, or waited, for a person, or a question to one.

    Either `tool_call` or `question` is set. `edited_arguments` are set if a person approved the
    call with other arguments. `text` is the reason of a denial, or the answer to a question.
    `expire_time` was moved at `escalate_time`, if that is set.
    """

    approval_id: str
    session_id: str
    run_id: str
    agent_id: str
    state: ApprovalState
    tool_call: ToolCallSubject | None
    question: Question | None
    reason: str
    create_time: datetime | None
    expire_time: datetime | None
    escalate_time: datetime | None
    on_expiry: ExpiryPolicy | None
    decide_time: datetime | None
    decided_by: str
    edited_arguments: Mapping[str, Any] | None
    edited_arguments_json: str
    text: str
    begin_time: datetime | None
