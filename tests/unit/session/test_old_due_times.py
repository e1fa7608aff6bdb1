"""Due times that were found and not fired for long, and cursors of clocks that were wrong."""

from datetime import UTC, datetime, timedelta

import pytest
from spawnmesh_session.domain.schedules import (
    CatchUpPolicy,
    Firing,
    FiringOutcome,
    OverlapPolicy,
    Schedule,
    cursor_of,
    is_too_old,
)

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def schedule(catch_up: CatchUpPolicy = CatchUpPolicy.NONE, cursor_time: datetime = NOW) -> Schedule:
    return Schedule("nightly", "0 9 * * *", "", b"", OverlapPolicy.SKIP, catch_up, cursor_time=cursor_time)


@pytest.mark.parametrize(
    ("policy", "hours", "is_old"),
    [
        ("NONE", 1, False),
        ("NONE", 1.01, True),
        ("LATEST", 1.01, True),
        ("ALL", 20, False),
        ("ALL", 20.1, True),
    ],
)
def test_a_due_time_that_was_not_fired_for_long_is_too_old(policy: str, hours: float, is_old: bool) -> None:
    due = Firing("fir_1", NOW - 9 * timedelta(days=1), NOW - timedelta(hours=hours), FiringOutcome.DUE)
    assert is_too_old(schedule(catch_up=CatchUpPolicy(policy)), due, NOW) == is_old


def test_a_cursor_far_ahead_is_of_a_clock_that_was_wrong() -> None:
    near, far = NOW + timedelta(minutes=5), NOW + timedelta(days=365)
    assert cursor_of(schedule(cursor_time=near), NOW) == near
    assert cursor_of(schedule(cursor_time=far), NOW) == NOW
