"""The check of budgets finds each anomaly, and nothing in what faults may cause."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.chaos.random_faults.checks import budgets
from tests.chaos.random_faults.facts import Facts, Row
from tests.chaos.random_faults.history import Outcome
from tests.support.chaos.sound_facts import (
    FRUGAL_SESSION,
    NOW,
    body,
    entry,
    event,
    raise_budget,
    run,
    session,
    sound,
    usage_of,
)


@dataclass(frozen=True)
class BudgetAnomaly:
    """A change to sound facts, and words of the line that the check must find."""

    name: str
    line: str
    seed: Callable[[Facts], Any]


def budget(facts: Facts) -> Row:
    (row,) = facts.tables["budgets"]
    return row


def run_of(facts: Facts) -> Row:
    (row,) = [one for one in facts.rows("runs") if one["session_id"] == FRUGAL_SESSION]
    return row


def session_of(facts: Facts) -> Row:
    (row,) = [one for one in facts.rows("sessions") if one["session_id"] == FRUGAL_SESSION]
    return row


def raised(facts: Facts) -> Any:
    (call,) = facts.of("raise")
    return call


def add_child(facts: Facts, token_count: int) -> None:
    """Add a child that shares the budget, and whose run has used so many tokens."""
    child = session("ses_saving", FRUGAL_SESSION, budget_session_ids=[FRUGAL_SESSION])
    facts.tables["sessions"].append(child)
    facts.tables["runs"].append({**run("ses_saving"), "usage": usage_of(token_count)})


def answer_again(facts: Facts, **fields: Any) -> None:
    row = entry(3, None, body("Three."), session_id=FRUGAL_SESSION, **fields)
    facts.tables["entries"].append(row)


def wait(facts: Facts) -> None:
    run_of(facts).update(state="WAITING_BUDGET", budget_session_id=FRUGAL_SESSION)


def open_call(facts: Facts, **fields: Any) -> None:
    row = {
        "call_id": "cal_1",
        "session_id": FRUGAL_SESSION,
        "run_id": "run_x",
        "largest_token_count": 5,
        "largest_cost_micros": 10,
        "due_time": NOW,
        "is_late": False,
    }
    facts.tables.setdefault("model_calls", []).append({**row, **fields})


ANOMALIES = [
    BudgetAnomaly(
        "run that waits in vain",
        "its budgets have room",
        lambda f: (wait(f), budget(f).update(max_model_call_count=3)),
    ),
    BudgetAnomaly(
        "run that was queued twice",
        "was queued 2 times",
        lambda f: f.tables["events"].append(
            event(FRUGAL_SESSION, 7, "RUN", "QUEUED", detail="the budget has room")
        ),
    ),
    BudgetAnomaly("tokens for free", "used_token_count 19", lambda f: budget(f).update(used_token_count=19)),
    BudgetAnomaly("cost for free", "used_cost_micros 39", lambda f: budget(f).update(used_cost_micros=39)),
    BudgetAnomaly("tokens of a child for free", "its family 21", lambda f: add_child(f, 1)),
    BudgetAnomaly("model call for free", "used_model_call_count 2", answer_again),
    BudgetAnomaly(
        "more tokens than an open call explains",
        "used_token_count 20",
        lambda f: (add_child(f, 6), open_call(f)),
    ),
    BudgetAnomaly("call without a job", "no job counts it", lambda f: open_call(f, due_time=None)),
    BudgetAnomaly("call whose time is over", "was not counted at", lambda f: open_call(f, is_late=True)),
    BudgetAnomaly("change that is not told", "changed 2 times", lambda f: budget(f).update(version=3)),
    BudgetAnomaly(
        "change that is told twice",
        "told 2",
        lambda f: f.tables["events"].append(event(FRUGAL_SESSION, 7, "BUDGET_CHANGED")),
    ),
    BudgetAnomaly("limit of no person", "was set to", lambda f: budget(f).update(max_model_call_count=9)),
    BudgetAnomaly(
        "limit of a refused call", "was set to", lambda f: setattr(raised(f), "outcome", Outcome.REFUSED)
    ),
    BudgetAnomaly(
        "limit of the spawn after an accepted change",
        "was set to",
        lambda f: budget(f).update(max_model_call_count=1),
    ),
    BudgetAnomaly(
        "answer with another limit",
        "was answered as",
        lambda f: raised(f).got.update(max_model_call_count=5),
    ),
]


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.name)
def test_anomaly_of_a_budget_is_found(anomaly: BudgetAnomaly) -> None:
    facts = sound()
    assert budgets.check(facts) == []
    anomaly.seed(facts)
    found = budgets.check(facts)
    assert any(anomaly.line in line for line in found), found


@pytest.mark.parametrize(
    "seed",
    [
        wait,
        lambda f: budget(f).update(used_token_count=25, used_cost_micros=99, used_model_call_count=4),
        lambda f: (add_child(f, 5), open_call(f)),
        lambda f: answer_again(f, is_synthetic=True),
        lambda f: run_of(f).update(usage={}),
        lambda f: f.calls.append(raise_budget(7, Outcome.UNKNOWN)),
        lambda f: (
            f.calls.append(raise_budget(7, Outcome.UNKNOWN)),
            budget(f).update(max_model_call_count=7),
        ),
        lambda f: budget(f).update(used_run_time=timedelta(hours=9)),
        # The spawn failed, and a repeat of it may begin again.
        lambda f: (
            session_of(f).update(request_id=None),
            setattr(raised(f), "outcome", Outcome.UNKNOWN),
            budget(f).update(max_model_call_count=1),
        ),
    ],
)  # fmt: skip
def test_effects_of_faults_are_no_anomaly(seed: Callable[[Facts], Any]) -> None:
    facts = sound()
    seed(facts)
    assert budgets.check(facts) == []
