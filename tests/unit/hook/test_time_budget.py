"""The time budget of a dispatch."""

import pytest
from spawnmesh_hook.operations.time_budget import budget_within


class Hands:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.mark.parametrize(
    ("remaining", "left"), [(1.0, 0.8), (10.0, 9.0), (0.0, 0.0), (None, 599.0), (10_000.0, 599.0)]
)
def test_time_for_the_answer_is_reserved(remaining: float | None, left: float) -> None:
    assert budget_within(remaining, Hands()).left() == pytest.approx(left)


def test_the_time_left_shrinks_and_is_never_negative() -> None:
    clock = Hands()
    budget = budget_within(10.0, clock)
    clock.at += 4
    assert budget.left() == pytest.approx(5.0)
    clock.at += 40
    assert budget.left() == 0.0
