"""The times of spawns during faults, from a history."""

from typing import Any

from tests.chaos.random_faults.faults import AppliedFault
from tests.chaos.random_faults.history import Call, Outcome
from tests.chaos.random_faults.plan import Fault, FaultKind
from tests.chaos.random_faults.spawn_times import late_spawns, spawn_times

FAULT = AppliedFault(Fault(20.0, 90.0, FaultKind.PAUSE, "session"), 25.0, 115.0)


def _spawn(start: float, end: float, *, outcome: Outcome = Outcome.OK, **given: Any) -> Call:
    return Call("spawn", "acme", start, {"files": []} | given, end, outcome)


def test_each_fault_has_its_own_spawns() -> None:
    before, early, late = _spawn(20.0, 29.0), _spawn(26.0, 30.0), _spawn(40.0, 41.5)
    refused = _spawn(50.0, 51.2, outcome=Outcome.UNKNOWN)
    impatient = Call("spawn", "acme", 60.0, {}, 99.0, Outcome.UNKNOWN)
    after = _spawn(115.0, 120.0)
    assert spawn_times([FAULT], [before, early, late, refused, impatient, after]) == [
        "pause session for 90.0 s: 2 spawns answered, after 10 s with a p99 of 1.5 s; 1 refused, within 1.2 s"
    ]


def test_late_answers_and_late_refusals_are_found() -> None:
    in_time = [_spawn(26.0, 35.0), _spawn(40.0, 42.9), _spawn(41.0, 42.9, outcome=Outcome.UNKNOWN)]
    assert late_spawns([FAULT], in_time) == []
    for late in (_spawn(40.0, 43.1), _spawn(26.0, 28.1, outcome=Outcome.REFUSED)):
        assert len(late_spawns([FAULT], [late])) == 1


def test_one_slow_answer_in_a_hundred_is_within_the_bound() -> None:
    quick, slow = [_spawn(40.0 + number / 2, 40.5 + number / 2) for number in range(99)], _spawn(50.0, 59.0)
    assert late_spawns([FAULT], [*quick, slow]) == []
    assert len(late_spawns([FAULT], [*quick[:98], slow, slow])) == 1
