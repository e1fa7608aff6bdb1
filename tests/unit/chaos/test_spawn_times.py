"""The times of spawns during faults, from a history."""

from typing import Any

import pytest

from tests.chaos.random_faults.faults import AppliedFault
from tests.chaos.random_faults.history import Call, Outcome
from tests.chaos.random_faults.load.everything import GATED
from tests.chaos.random_faults.plan import MODEL, PLUGIN, POSTGRES, S3, Fault, FaultKind, can_spawn
from tests.chaos.random_faults.spawn_times import bad_spawns, spawn_times, unanswered_spawns

PAUSED = AppliedFault(Fault(20.0, 90.0, FaultKind.PAUSE, "session"), 25.0, 115.0)
AWAY = AppliedFault(Fault(20.0, 90.0, FaultKind.AWAY, "session"), 25.0, 115.0)

NO_S3 = AppliedFault(Fault(20.0, 90.0, FaultKind.AWAY, S3), 25.0, 115.0)


def _spawn(
    start: float, end: float, outcome: Outcome = Outcome.OK, status: str = "UNAVAILABLE", **given: Any
) -> Call:
    status = "" if outcome is Outcome.OK else status
    asked = {"files": [], "request_id": f"r{start}"} | given
    return Call("spawn", "acme", start, asked, end, outcome, status=status)


def _quick(count: int) -> list[Call]:
    return [_spawn(25.0 + place * 90.0 / count, 25.5 + place * 90.0 / count) for place in range(count)]


def test_each_fault_has_its_own_spawns() -> None:
    before, early, late = _spawn(20.0, 29.0), _spawn(26.0, 30.0), _spawn(40.0, 41.5)
    refused = _spawn(50.0, 51.2, Outcome.UNKNOWN)
    impatient = Call("spawn", "acme", 60.0, {"request_id": "r"}, 99.0, Outcome.UNKNOWN)
    repeated = _spawn(61.0, 70.0, Outcome.UNKNOWN, "ABORTED", request_id="r")
    after = _spawn(115.0, 120.0)
    assert spawn_times([PAUSED], [before, early, late, refused, impatient, repeated, after]) == [
        "pause session for 90.0 s: 2 spawns answered, after 10 s with a p99 of 1.5 s; 1 refused, within 1.2 s"
        "; 1 joined another call, for up to 9.0 s"
    ]


def test_spawns_in_time_are_good() -> None:
    slow_at_first, slow_enough = _spawn(26.0, 35.0), _spawn(40.0, 42.9)
    refused = _spawn(41.0, 42.9, Outcome.UNKNOWN)
    repeated = _spawn(42.0, 50.0, Outcome.UNKNOWN, "ABORTED", request_id="r41.0")
    assert bad_spawns([AWAY], [*_quick(30), slow_at_first, slow_enough, refused, repeated]) == []
    assert bad_spawns([PAUSED], [*_quick(30), _spawn(26.0, 27.0, Outcome.UNKNOWN)]) == []


@pytest.mark.parametrize(
    ("fault", "bad", "found"),
    [
        (AWAY, _spawn(40.0, 43.1), "answers took 3.1 s"),
        (AWAY, _spawn(26.0, 28.1, Outcome.REFUSED), "a refusal took 2.1 s"),
        (AWAY, _spawn(40.0, 41.0, Outcome.UNKNOWN, "RESOURCE_EXHAUSTED"), "refusals were RESOURCE_EXHAUSTED"),
        (AWAY, _spawn(26.0, 34.0, Outcome.UNKNOWN, "ABORTED"), "a refusal took 8.0 s; refusals were ABORTED"),
        (PAUSED, _spawn(40.0, 41.0, Outcome.UNKNOWN), "1 spawns were refused that needed nothing"),
        (NO_S3, _spawn(40.0, 41.0, Outcome.UNKNOWN), "1 spawns were refused that needed nothing"),
    ],
    ids=[
        "late answer",
        "late refusal",
        "another status",
        "first call aborted",
        "refused by the other replica",
        "refused without files",
    ],
)
def test_each_bad_spawn_is_found(fault: AppliedFault, bad: Call, found: str) -> None:
    [line] = bad_spawns([fault], [*_quick(30), bad])
    assert found in line


def test_fault_that_meets_hardly_a_spawn_shows_nothing() -> None:
    assert bad_spawns([AWAY], _quick(18)) == []
    assert [line.partition("; only ")[2] for line in bad_spawns([AWAY], _quick(17))] == [
        "17 spawns were made"
    ]


def test_one_slow_answer_in_a_hundred_is_within_the_bound() -> None:
    quick, slow = [_spawn(40.0 + number / 2, 40.5 + number / 2) for number in range(99)], _spawn(50.0, 59.0)
    assert bad_spawns([AWAY], [*quick, slow]) == []
    assert len(bad_spawns([AWAY], [*quick[:98], slow])) == 1
    assert len(bad_spawns([AWAY], [*quick, slow, slow])) == 1


def test_request_without_any_answer_is_found() -> None:
    calls = [
        _spawn(30.0, 31.0, Outcome.UNKNOWN, request_id="again"),
        _spawn(90.0, 91.0, request_id="again"),
        _spawn(32.0, 33.0, Outcome.UNKNOWN, request_id="refused"),
        _spawn(92.0, 93.0, Outcome.REFUSED, "RESOURCE_EXHAUSTED", request_id="refused"),
        _spawn(34.0, 35.0, Outcome.UNKNOWN, request_id="never"),
        _spawn(94.0, 95.0, Outcome.UNKNOWN, request_id="never"),
    ]
    assert unanswered_spawns(calls) == ["request never of 34.0 s was never answered: "]


def test_a_spawn_with_files_is_refused_without_S3() -> None:
    assert bad_spawns([NO_S3], [*_quick(30), _spawn(40.0, 41.0, Outcome.UNKNOWN, files=["a"])]) == []


def test_a_plugin_that_is_asked_about_no_spawn_shows_nothing() -> None:
    away = AppliedFault(Fault(20.0, 90.0, FaultKind.KILL, PLUGIN), 25.0, 115.0)
    gated = _spawn(40.0, 41.0, Outcome.UNKNOWN)
    gated.tenant = GATED
    assert bad_spawns([away], [*_quick(30), gated]) == []
    [line] = bad_spawns([away], _quick(30))
    assert "the plugin was asked about no spawn" in line


def test_if_most_spawns_join_others_there_is_too_little_to_tell() -> None:
    first = _spawn(26.0, 90.0, request_id="r")
    joined = [_spawn(30.0, 40.0, Outcome.UNKNOWN, "ABORTED", request_id="r")] * 40
    assert bad_spawns([AWAY], [*_quick(30), first, *joined[:30]]) == []
    [line] = bad_spawns([AWAY], [*_quick(30), first, *joined])
    assert "40 of 71 spawns joined another call" in line


@pytest.mark.parametrize(
    ("kind", "target", "with_files", "gated"),
    [
        (FaultKind.PAUSE, "session", True, True),
        (FaultKind.KILL, "session", True, True),
        (FaultKind.PAUSE, POSTGRES, False, False),
        (FaultKind.PAUSE, PLUGIN, True, False),
        (FaultKind.KILL, PLUGIN, True, False),
        (FaultKind.PAUSE, MODEL, True, True),
        (FaultKind.HANG, "session", False, False),
        (FaultKind.HANG, "model-router", True, True),
        (FaultKind.HOLD, S3, False, True),
        (FaultKind.AWAY, "attachment-blob", False, True),
        (FaultKind.AWAY, "transcript", False, False),
        (FaultKind.AWAY, "transcript-worker", True, True),
        (FaultKind.AWAY, "runner", True, True),
        (FaultKind.KILL, MODEL, True, True),
    ],
)
def test_spawns_need_no_runner_worker_or_model(
    kind: FaultKind, target: str, *, with_files: bool, gated: bool
) -> None:
    """Others than those with files, and of a tenant without a plugin, need the other services."""
    fault = Fault(0.0, 90.0, kind, target)
    assert can_spawn(fault, has_files=True, is_gated=False) is with_files
    assert can_spawn(fault, has_files=False, is_gated=True) is gated
