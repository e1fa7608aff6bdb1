"""I11: the check of approvals finds each anomaly, and nothing in what faults may cause."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_TOOL_RESULT

from tests.chaos.random_faults.checks import approvals
from tests.chaos.random_faults.facts import Facts, Row
from tests.chaos.random_faults.history import Outcome
from tests.support.chaos.sound_facts import (
    APPROVED,
    ASKED,
    DENIED,
    body,
    call,
    decide,
    event,
    sound,
    written,
)


@dataclass(frozen=True)
class Anomaly:
    """A change to sound facts, and words of the line that the check must find."""

    name: str
    line: str
    seed: Callable[[Facts], Any]


def approval(facts: Facts, session_id: str) -> Row:
    return facts.tables["approvals"][(APPROVED, DENIED).index(session_id)]


def drop(facts: Facts, session_id: str) -> None:
    """Remove the approval, and the decisions on it."""
    lost = approval(facts, session_id)
    facts.tables["approvals"].remove(lost)
    facts.calls = [one for one in facts.calls if one.given.get("approval_id") != lost["approval_id"]]


def result(facts: Facts, session_id: str) -> Row:
    (found,) = [
        row for row in facts.rows("entries") if row["session_id"] == session_id and row["answers"] == "call 1"
    ]
    return found


def say(facts: Facts, session_id: str, text: str) -> None:
    result(facts, session_id).update(body=body(text, ROLE_TOOL_RESULT))


def name_answer(facts: Facts, session_id: str, entry_id: str) -> None:
    for row in facts.rows("entries"):
        if row["session_id"] == session_id and row["calls"]:
            row.update(entry_id=entry_id)


ANOMALIES = [
    Anomaly("approval that waits on", "is PENDING", lambda f: approval(f, DENIED).update(state="PENDING")),
    Anomaly("approval that is lost", "is not there", lambda f: f.tables["approvals"].pop()),
    Anomaly("call without an approval", "was made without an approval", lambda f: drop(f, APPROVED)),
    Anomaly("approval of no call", "is of no call", lambda f: name_answer(f, APPROVED, "ent_x")),
    Anomaly("decision that changed", "was decided as", lambda f: approval(f, DENIED).update(text="Other.")),
    Anomaly(
        "two accepted decisions", "was decided as", lambda f: f.calls.append(decide(DENIED, text="Other."))
    ),
    Anomaly(
        "two people accepted", "was decided as", lambda f: f.calls.append(decide(DENIED, decided_by="ada"))
    ),
    Anomaly(
        "answer with another decision",
        "answered as ('APPROVED'",
        lambda f: f.calls[-1].got.update(state="APPROVED"),
    ),
    Anomaly(
        "refused decision that is stored",
        "was refused, or never made",
        lambda f: setattr(f.calls[-1], "outcome", Outcome.REFUSED),
    ),
    Anomaly("decision of no person", "was refused, or never made", lambda f: f.calls.pop()),
    Anomaly(
        "run that was queued twice",
        "was queued 2 times",
        lambda f: f.tables["events"].append(
            event(DENIED, 9, "RUN", "QUEUED", detail="the approval is APPROVED")
        ),
    ),
    Anomaly(
        "approval of other arguments",
        "is of other arguments",
        lambda f: approval(f, APPROVED).update(arguments_json="{}"),
    ),
    Anomaly("two results", "has 2 results", lambda f: f.tables["entries"].append(result(f, APPROVED))),
    Anomaly("arguments of the model", "has the result", lambda f: say(f, APPROVED, written(ASKED))),
    Anomaly("approved call that was denied", "has the result", lambda f: say(f, APPROVED, "DENIED: No.")),
    Anomaly(
        "approved call without a result",
        "has no result",
        lambda f: f.tables["entries"].remove(result(f, APPROVED)),
    ),
    Anomaly(
        "call that another runner had begun",
        "begun at epoch 1",
        lambda f: approval(f, APPROVED).update(begin_epoch=1),
    ),
    Anomaly(
        "call that no runner had begun",
        "begun at epoch 0",
        lambda f: approval(f, APPROVED).update(begin_epoch=0),
    ),
    Anomaly(
        "unknown outcome of a call that is the runner's own",
        "has the result",
        lambda f: say(f, APPROVED, "OUTCOME_UNKNOWN: x"),
    ),
    Anomaly("denied call that was made", "has the result", lambda f: say(f, DENIED, written(ASKED))),
    Anomaly("denied call with another reason", "has the result", lambda f: say(f, DENIED, "DENIED: Other.")),
    Anomaly("interrupt that no client made", "has the result", lambda f: say(f, APPROVED, "INTERRUPTED: x")),
]


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.name)
def test_anomaly_is_found(anomaly: Anomaly) -> None:
    facts = sound()
    anomaly.seed(facts)
    found = approvals.check(facts)
    assert any(anomaly.line in line for line in found), found


def test_approved_call_of_a_lost_runner_has_an_unknown_outcome() -> None:
    facts = sound()
    approval(facts, APPROVED).update(begin_epoch=1)
    say(facts, APPROVED, "OUTCOME_UNKNOWN: a person approved this call")
    assert approvals.check(facts) == []


@pytest.mark.parametrize(
    ("state", "text"),
    [("EXPIRED", "DENIED: no person decided in time"), ("WITHDRAWN", "INTERRUPTED: it was not done")],
)
def test_call_without_a_decision_is_not_made(state: str, text: str) -> None:
    facts = sound()
    approval(facts, DENIED).update(state=state, decided_by="", text="")
    say(facts, DENIED, text)
    facts.calls[-1].outcome = Outcome.REFUSED
    assert approvals.check(facts) == []
    say(facts, DENIED, written(ASKED))
    assert len(approvals.check(facts)) == 1


def test_approved_call_may_be_cut_short_by_an_interrupt() -> None:
    facts = sound()
    say(facts, APPROVED, "INTERRUPTED: you were interrupted during this call")
    facts.calls.append(call("interrupt", 1.0, 2.0, session_id=APPROVED))
    assert approvals.check(facts) == []


def test_call_without_an_approval_may_be_refused() -> None:
    facts = sound()
    drop(facts, DENIED)
    assert approvals.check(facts) == []
