"""When a plugin that fails is left alone, and when an observer is told again."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_hook.domain.breaker import (
    FAILURES_TO_OPEN,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Breaker,
    begun,
    failed,
    given_up,
    may_call,
    succeeded,
)
from spawnmesh_hook.domain.telling import LONGEST_PAUSE, MAX_ATTEMPT_COUNT, pause_after


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker = failed(breaker, at)
    return breaker


def test_the_third_failure_in_a_row_opens_it() -> None:
    breaker = failed(failed(Breaker(), 0), 0)
    assert may_call(breaker, 0)
    assert not may_call(failed(breaker, 0), 0)
    assert may_call(failed(succeeded(), 0), 0)


def test_behind_the_pause_one_probe_is_let_through() -> None:
    breaker = opened()
    assert not may_call(breaker, FIRST_PAUSE_SECONDS - 0.1)
    assert may_call(breaker, FIRST_PAUSE_SECONDS)
    probing = begun(breaker)
    assert not may_call(probing, FIRST_PAUSE_SECONDS)
    assert may_call(given_up(probing), FIRST_PAUSE_SECONDS)


def test_a_failed_probe_doubles_the_pause_and_a_good_one_forgets_all() -> None:
    again = failed(begun(opened()), 100)
    assert not may_call(again, 100 + 2 * FIRST_PAUSE_SECONDS - 0.1)
    assert may_call(again, 100 + 2 * FIRST_PAUSE_SECONDS)
    assert succeeded() == Breaker()


def test_a_late_failure_of_an_earlier_call_prolongs_nothing() -> None:
    assert failed(opened(), 5.0) == opened()


@given(st.integers(min_value=FAILURES_TO_OPEN, max_value=200))
def test_the_pause_has_an_end(count: int) -> None:
    breaker, now = opened(), 0.0
    for _ in range(count):
        now = breaker.open_until or now
        assert may_call(breaker, now)
        breaker = failed(begun(breaker), now)
        assert FIRST_PAUSE_SECONDS < (breaker.open_until or 0) - now <= LONGEST_PAUSE_SECONDS


def test_an_observer_is_told_for_about_a_day_with_growing_pauses() -> None:
    pauses = [pause_after(count) for count in range(1, MAX_ATTEMPT_COUNT)]
    known = [pause for pause in pauses if pause is not None]
    assert len(known) == len(pauses)
    assert known == sorted(known)
    assert max(known) == LONGEST_PAUSE
    assert timedelta(hours=20) < sum(known, timedelta()) < timedelta(hours=28)
    assert pause_after(MAX_ATTEMPT_COUNT) is None
