"""The usage that is left of a count after some time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.policy import NOTHING_SPENT, Spent, spent_later

SPENT = Spent(3, 40, 500, minute_left_seconds=20.0, day_left_seconds=90.0)


@pytest.mark.parametrize(
    ("seconds", "left"),
    [
        (0.0, SPENT),
        (19.0, Spent(3, 40, 500, 1.0, 71.0)),
        (20.0, Spent(0, 0, 500, 60.0, 70.0)),
        (25.0, Spent(0, 0, 500, 55.0, 65.0)),
        (90.0, Spent(0, 0, 0, 50.0, 86_400.0)),
        (100.0, Spent(0, 0, 0, 40.0, 86_390.0)),
    ],
)
def test_usage_of_a_period_ends_with_it(seconds: float, left: Spent) -> None:
    assert spent_later(SPENT, seconds) == left


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_rest_of_a_period_is_never_longer_than_it(first: float, second: float) -> None:
    spent = spent_later(spent_later(NOTHING_SPENT, first), second)
    assert 0 < spent.minute_left_seconds <= 60
    assert 0 < spent.day_left_seconds <= 86_400
