"""Approvals for people: rows of a list, and all that a decision needs."""

import json
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text
from spawnmesh.session.v1 import approval_pb2 as pb

from spawnmesh_command.cli.show import console, plain, print_table, when
from spawnmesh_command.doctor.ages import time_left

STATE_PREFIX = "APPROVAL_STATE_"
_SHOWN_CHARS = 120  # `approvals show` prints all.
_EXPIRY = {
    pb.EXPIRY_POLICY_DENY: "then it is denied, and the run goes on",
    pb.EXPIRY_POLICY_FAIL: "then the run fails",
    pb.EXPIRY_POLICY_ESCALATE: "then it is escalated: it waits for as long again, and webhooks are told",
}


def state_word(approval: pb.Approval) -> str:
    """Return the state of the approval, such as `PENDING`."""
    return pb.ApprovalState.Name(approval.state).removeprefix(STATE_PREFIX)


def print_approvals(approvals: Sequence[pb.Approval]) -> None:
    """Print a row for each approval."""
    print_table(
        ("approval", "state", "session", "agent", "call or question", "reason"),
        (
            (
                one.approval_id,
                _state(one),
                one.session_id,
                one.agent_id,
                _short(_subject(one)),
                _short(one.reason),
            )
            for one in approvals
        ),
    )


def print_approval(approval: pb.Approval) -> None:
    """Print an approval with all arguments or the question, and the commands that decide."""
    grid = Table.grid(padding=(0, 2))
    for name, value in _rows(approval):
        grid.add_row(Text(name, style="dim"), Text(plain(value)))
    console().print(grid)
    for title, text in _texts(approval):
        print(f"\n{title}\n{plain(text)}")
    if approval.state == pb.APPROVAL_STATE_PENDING:
        print("\n" + "\n".join(_commands(approval)))


def _rows(approval: pb.Approval) -> Iterator[tuple[str, str]]:
    yield "approval", approval.approval_id
    yield "state", _state(approval)
    yield "session", approval.session_id
    yield "run", approval.run_id
    yield "agent", approval.agent_id
    if approval.HasField("tool_call"):
        yield "tool", approval.tool_call.tool_name
    if approval.reason:
        yield "reason", approval.reason
    yield "requested", when(approval.create_time)
    if approval.HasField("escalate_time"):
        yield "escalated", f"{when(approval.escalate_time)}, as no person had decided"
    if approval.state == pb.APPROVAL_STATE_PENDING:
        yield "until", f"{when(approval.expire_time)}, {_end_of(approval)}".rstrip(", ")
    if approval.HasField("decide_time"):
        yield "decided", when(approval.decide_time)
    if approval.HasField("begin_time"):
        yield "call begun", when(approval.begin_time)


def _end_of(approval: pb.Approval) -> str:
    """Return what the end of the approval's time does."""
    if approval.HasField("escalate_time"):
        return _EXPIRY[pb.EXPIRY_POLICY_DENY]
    return _EXPIRY.get(approval.on_expiry, "")


def _texts(approval: pb.Approval) -> Iterator[tuple[str, str]]:
    """Yield the longer texts with their titles."""
    if approval.HasField("tool_call"):
        yield "arguments", _readable(approval.tool_call.arguments_json)
    if approval.HasField("question"):
        yield "question", approval.question.text
        if approval.question.choices:
            yield "choices", "\n".join(f"- {choice}" for choice in approval.question.choices)
    if approval.edited_arguments_json:
        yield "approved arguments", _readable(approval.edited_arguments_json)
    if approval.text:
        answered = approval.state == pb.APPROVAL_STATE_ANSWERED
        yield "answer" if answered else "reason of the denial", approval.text


def _commands(approval: pb.Approval) -> Iterator[str]:
    approval_id = approval.approval_id
    if approval.HasField("question"):
        yield f"spawnmesh approvals answer {approval_id} TEXT"
    else:
        yield f"spawnmesh approvals approve {approval_id} [--arguments JSON]"
    yield f"spawnmesh approvals deny {approval_id} [--reason TEXT]"


def _state(approval: pb.Approval) -> str:
    """Return the state, with the time that is left or the person who decided."""
    if approval.state == pb.APPROVAL_STATE_PENDING:
        return f"{time_left(approval.expire_time)} left"
    by = f" by {approval.decided_by}" if approval.decided_by else ""
    return state_word(approval) + by


def _subject(approval: pb.Approval) -> str:
    if approval.HasField("question"):
        return approval.question.text
    return f"{approval.tool_call.tool_name} {approval.tool_call.arguments_json}"


def _short(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = plain(" ".join(text.split()), keep="")
    return line if len(line) <= _SHOWN_CHARS else line[:_SHOWN_CHARS] + "…"


def _readable(text: str) -> str:
    """Return JSON over several lines; a text that is no JSON as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
