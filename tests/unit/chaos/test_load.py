"""When the load is in full swing."""

import pytest

from tests.chaos.random_faults.history import Call, Outcome
from tests.chaos.random_faults.load.everything import OPERATIONS, is_in_full_swing


def _calls() -> list[Call]:
    """Return an answered call of each kind."""
    calls = [
        Call(name, "t", 0.0, {}, 1.0, Outcome.REFUSED if name == "pry" else Outcome.OK)
        for name in sorted(OPERATIONS - {"spawn"})
    ]
    return [Call("spawn", "t", 0.0, {"label": "caller"}, 1.0, Outcome.OK), *calls]


def test_load_is_in_full_swing_once_every_user_had_an_answer() -> None:
    assert is_in_full_swing(_calls())


@pytest.mark.parametrize("place", range(len(OPERATIONS)))
def test_load_that_lacks_an_answer_is_not_in_full_swing(place: int) -> None:
    calls = _calls()
    calls[place].outcome = Outcome.UNKNOWN
    assert not is_in_full_swing(calls)


def test_load_without_a_parent_is_not_in_full_swing() -> None:
    calls = _calls()
    calls[0].given["label"] = "plain"
    assert not is_in_full_swing(calls)
