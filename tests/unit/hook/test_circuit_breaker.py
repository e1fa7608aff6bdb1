"""The circuit breaker as values."""

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_hook.domain.circuit_breaker import (
    FAILURES_TO_OPEN,
    FIRST_OPEN_SECONDS,
    LONGEST_OPEN_SECONDS,
    LONGEST_PROBE_SECONDS,
    CircuitBreaker,
    call_cancelled,
    call_failed,
    call_started,
    may_call,
)


def opened(at: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker = call_failed(breaker, at)
    return breaker


def test_the_third_failure_in_a_row_opens_the_breaker() -> None:
    breaker = call_failed(call_failed(CircuitBreaker(), 0), 0)
    assert may_call(breaker, 0)
    assert not may_call(call_failed(breaker, 0), 0)


def test_a_half_open_breaker_allows_one_probe() -> None:
    breaker = opened()
    assert not may_call(breaker, FIRST_OPEN_SECONDS - 0.1)
    assert may_call(breaker, FIRST_OPEN_SECONDS)
    probing = call_started(breaker, FIRST_OPEN_SECONDS)
    assert not may_call(probing, FIRST_OPEN_SECONDS)
    assert may_call(call_cancelled(probing), FIRST_OPEN_SECONDS)


def test_a_probe_that_takes_long_is_followed_by_another_one() -> None:
    begun = 2 * FIRST_OPEN_SECONDS
    probing = call_started(opened(), begun)
    assert not may_call(probing, begun + LONGEST_PROBE_SECONDS - 0.1)
    second = call_started(probing, begun + LONGEST_PROBE_SECONDS)
    assert may_call(probing, begun + LONGEST_PROBE_SECONDS)
    assert not may_call(second, begun + LONGEST_PROBE_SECONDS)
    again = call_failed(second, begun + 2 * LONGEST_PROBE_SECONDS)
    assert call_failed(again, begun + 3 * LONGEST_PROBE_SECONDS) == again, "the other one's failure is late"


def test_a_failed_probe_doubles_the_open_time() -> None:
    again = call_failed(call_started(opened(), 100), 100)
    assert not may_call(again, 100 + 2 * FIRST_OPEN_SECONDS - 0.1)
    assert may_call(again, 100 + 2 * FIRST_OPEN_SECONDS)


def test_a_late_failure_of_an_earlier_call_changes_nothing() -> None:
    assert call_failed(opened(), 5.0) == opened()


@given(st.integers(min_value=FAILURES_TO_OPEN, max_value=200))
def test_the_open_time_is_bounded(count: int) -> None:
    breaker, now = opened(), 0.0
    for _ in range(count):
        now = breaker.open_until or now
        assert may_call(breaker, now)
        breaker = call_failed(call_started(breaker, now), now)
        assert FIRST_OPEN_SECONDS < (breaker.open_until or 0) - now <= LONGEST_OPEN_SECONDS
