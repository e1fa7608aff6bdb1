"""The times of spawns during faults, from a history."""

from typing import Any

from tests.chaos.random_faults.faults import AppliedFault
from tests.chaos.random_faults.history import Call, Outcome
from tests.chaos.random_faults.plan import Fault, FaultKind
from tests.chaos.random_faults.spawn_times import spawn_times

FAULT = AppliedFault(Fault(20.0, 90.0, FaultKind.PAUSE, "session"), 25.0, 115.0)


def _spawn(start: float, end: float, *, outcome: Outcome = Outcome.OK, **given: Any) -> Call:
    return Call("spawn", "acme", start, {"files": []} | given, end, outcome)


def test_each_fault_has_its_own_spawns() -> None:
    before, early, late = _spawn(20.0, 29.0), _spawn(26.0, 30.0), _spawn(40.0, 41.5)
    refused = _spawn(50.0, 51.2, outcome=Outcome.UNKNOWN)
    impatient = Call("spawn", "acme", 60.0, {}, 99.0, Outcome.UNKNOWN)
    after = _spawn(115.0, 120.0)
    assert spawn_times([FAULT], [before, early, late, refused, impatient, after]) == [
        "pause session for 90.0 s: 2 spawns answered, after 10 s within 1.5 s; 1 refused, within 1.2 s"
    ]
