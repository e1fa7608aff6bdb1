"""The time a dispatch may take."""

import pytest
from spawnmesh_hook.budget import budget_within


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.mark.parametrize(("remaining", "left"), [(1.0, 0.8), (10.0, 9.0), (0.0, 0.0), (None, 599.0), (10_000.0, 599.0)])
def test_something_is_kept_back_for_the_answer(remaining: float | None, left: float) -> None:
    assert budget_within(remaining, Hands()).left() == pytest.approx(left)


def test_what_is_left_shrinks_and_is_never_negative() -> None:
    clock = Hands()
    budget = budget_within(10.0, clock)
    clock.at += 4
    assert budget.left() == pytest.approx(5.0)
    clock.at += 40
    assert budget.left() == 0.0
