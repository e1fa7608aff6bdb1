"""A token bucket never admits more than its burst and its rate, and never loses what it owes."""

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.token_bucket import TokenBucket

RATES = st.floats(min_value=0.5, max_value=10_000)
PAUSES = st.lists(st.floats(min_value=0, max_value=3), min_size=1, max_size=200)


@given(RATES, PAUSES)
def test_any_span_admits_at_most_a_burst_and_the_rate(per_second: float, pauses: list[float]) -> None:
    bucket, now, admitted = TokenBucket(per_second, 0.0), 0.0, []
    for pause in pauses:
        now += pause
        if bucket.take(now) == 0:
            admitted.append(now)
    for first, begin in enumerate(admitted):
        for last in range(first, len(admitted)):
            assert last - first + 1 <= per_second * (1 + admitted[last] - begin) + 1e-6


@given(RATES, PAUSES)
def test_a_call_after_the_time_that_it_was_told_is_admitted(per_second: float, pauses: list[float]) -> None:
    bucket, now = TokenBucket(max(1.0, per_second), 0.0), 0.0
    for pause in pauses:
        now += pause
        seconds = bucket.take(now)
        if seconds > 0:
            now += seconds * (1 + 1e-9) + 1e-9
            assert bucket.take(now) == 0


@given(RATES, st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1e6)), min_size=1, max_size=100))
def test_work_of_an_unknown_size_exceeds_the_limit_by_its_last_piece(
    per_second: float, pieces: list[tuple[float, float]]
) -> None:
    bucket, now, spent, last = TokenBucket(per_second, 0.0), 0.0, 0.0, 0.0
    for pause, size in pieces:
        now += pause
        if bucket.seconds_of_debt(now) == 0:
            bucket.spend(size, now)
            spent, last = spent + size, max(last, size)
    assert spent <= per_second * (1 + now) + last + 1e-3


def test_a_clock_that_goes_back_adds_nothing() -> None:
    bucket = TokenBucket(1.0, 100.0)
    assert bucket.take(100.0) == 0
    assert 0 < bucket.take(50.0) <= 1
    assert bucket.take(100.5) > 0
    assert bucket.take(101.0) == 0
