"""I11: a tool call that needs an approval is made once, and as a person approved it.

A row is compared with the calls of the people who decided, with the events of its session, and with
the result in the transcript. The result names the file that was written and its hash, so it shows
the arguments with which the call was made. Its epoch shows the runner that made it.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from spawnmesh.content.v1.message_pb2 import ToolCall
from spawnmesh_runner.tools.calling.call_arguments import call_arguments
from spawnmesh_session.domain.approvals import approval_id_of

from tests.chaos.random_faults.checks.entry_texts import message_of, text_of
from tests.chaos.random_faults.facts import Facts, Row
from tests.chaos.random_faults.history import Call, Outcome
from tests.chaos.random_faults.load.careful import CAREFUL, CAREFUL_TOOL

_DECISION = ("state", "decided_by", "edited_arguments_json", "text")
_TERMINAL = ("APPROVED", "DENIED", "EXPIRED", "WITHDRAWN")
_BY_PEOPLE = ("APPROVED", "DENIED")
_UNKNOWN, _INTERRUPTED = "OUTCOME_UNKNOWN: ", "INTERRUPTED: "
_TOO_LATE = "DENIED: no person decided in time"

Decision = tuple[str, ...]
"""The values of `_DECISION`."""


@dataclass(frozen=True, slots=True)
class _CarefulCall:
    """A tool call in the transcript of a careful agent, and its results."""

    session_id: str
    run_id: str
    approval_id: str
    call: ToolCall
    results: list[Row] = field(default_factory=list)


def check(facts: Facts) -> list[str]:
    """Check the decisions on each approval, and the result of each call of careful agents."""
    approvals = {row["approval_id"]: row for row in facts.rows("approvals")}
    calls = {call.approval_id: call for call in _careful_calls(facts)}
    interrupted = {call.given["session_id"] for call in facts.of("interrupt")}
    succeeded = {run["run_id"] for run in facts.rows("runs") if run["state"] == "SUCCEEDED"}
    found = [*_wrong_decisions(facts, approvals), *_wrong_events(facts)]
    found += [f"{name} is of no call in a transcript" for name in approvals if name not in calls]
    for approval_id, call in calls.items():
        name = f"{call.call.tool_call_id} of {call.session_id}"
        if len(call.results) > 1:
            found.append(f"{name} has {len(call.results)} results")
        approval = approvals.get(approval_id)
        if approval is None:
            found += [f"{name} was made without an approval" for row in call.results if _written(row)]
            continue
        if json.loads(approval["arguments_json"]) != call_arguments(call.call):
            found.append(f"{approval_id} is of other arguments than {name}")
        if not call.results and call.run_id in succeeded:
            found.append(f"{name} has no result, and its run succeeded")
        for row in call.results:
            may_be_cut_short = call.session_id in interrupted and approval["state"] in _BY_PEOPLE
            if not (may_be_cut_short and text_of(row).startswith(_INTERRUPTED)) and not _fits(row, approval):
                found.append(
                    f"{name} has the result {text_of(row)[:200]!r} at epoch {row['writer_epoch']}; {approval_id}"
                    f" is {_decision_of(approval)}, begun at epoch {approval['begin_epoch']}"
                )
    return found


def _wrong_decisions(facts: Facts, approvals: dict[str, Row]) -> Iterator[str]:
    """Compare each row with the calls that decided on it."""
    decided: dict[str, list[Call]] = defaultdict(list)
    for call in facts.of("decide"):
        decided[call.given["approval_id"]].append(call)
    for approval_id, row in approvals.items():
        stored = _decision_of(row)
        if row["state"] not in _TERMINAL:
            yield f"{approval_id} is {row['state']}"
        for call in decided[approval_id]:
            if call.is_ok and not stored == _decision_of(call.given) == _decision_of(call.got):
                yield (
                    f"{approval_id} was decided as {_decision_of(call.given)} at {call.end:.1f} s, answered as"
                    f" {_decision_of(call.got)}, and is {stored}"
                )
        takers = [call for call in decided[approval_id] if _decision_of(call.given) == stored]
        if row["state"] in _BY_PEOPLE and all(call.outcome is Outcome.REFUSED for call in takers):
            yield f"{approval_id} is {stored}, and this decision was refused, or never made"
    yield from (f"{name} was decided, and is not there" for name in decided if name not in approvals)


def _wrong_events(facts: Facts) -> Iterator[str]:
    """Look for runs that went on more often than they waited for a person."""
    waits, ends = Counter[str](), Counter[str]()
    for row in facts.rows("events"):
        waits[row["run_id"]] += row["run_state"] == "WAITING_APPROVAL"
        ends[row["run_id"]] += row["run_state"] == "QUEUED" and row["detail"].startswith("the approval ")
    for run_id, count in ends.items():
        if count > waits[run_id]:
            yield f"{run_id} waited {waits[run_id]} times for a person, and was queued {count} times after it"


def _careful_calls(facts: Facts) -> Iterator[_CarefulCall]:
    """Yield the calls of careful agents that need an approval."""
    careful = {row["session_id"] for row in facts.rows("sessions") if row["agent_id"] == CAREFUL}
    rows = [row for row in facts.rows("entries") if row["session_id"] in careful]
    results: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["answers"] and not row["is_synthetic"]:
            results[(row["session_id"], row["answers"])].append(row)
    for row in rows:
        made = [block.tool_call for block in message_of(row).content if block.HasField("tool_call")]
        for index, call in enumerate(made if row["calls"] else ()):
            if call.name == CAREFUL_TOOL:
                session_id, run_id = row["session_id"], row["writer_run_id"]
                approval_id = approval_id_of(run_id, row["entry_id"], index)
                of_call = results[(session_id, call.tool_call_id)]
                yield _CarefulCall(session_id, run_id, approval_id, call, of_call)


def _fits(result: Row, approval: Row) -> bool:
    """Return whether the decision explains the result."""
    text, is_own = text_of(result), result["writer_epoch"] == approval["begin_epoch"]
    match approval["state"]:
        case "APPROVED":
            if text.startswith(_UNKNOWN):
                return approval["begin_epoch"] > 0 and not is_own
            arguments = json.loads(approval["edited_arguments_json"] or approval["arguments_json"])
            digest = hashlib.sha256(arguments["content"].encode()).hexdigest()
            return is_own and _written(result) == (arguments["path"], digest)
        case "DENIED":
            return text == f"DENIED: {approval['text']}"
        case "EXPIRED":
            return text == _TOO_LATE
        case "WITHDRAWN":
            return text.startswith(_INTERRUPTED)
    return False


def _written(result: Row) -> tuple[str, str] | None:
    """Return the path and the hash of the file that was written; None if none was."""
    try:
        written = json.loads(text_of(result))
    except ValueError:
        return None
    return (written["path"], written["sha256"]) if "sha256" in written else None


def _decision_of(row: Row) -> Decision:
    return tuple(str(row.get(name, "")) for name in _DECISION)
