"""The ticks of a time axis: few, at round times, from zero on."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.time_axis import ticks

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, ["0"]),
        (0.000_004, ["0", "0.001 ms", "0.002 ms", "0.003 ms", "0.004 ms"]),
        (0.0021, ["0", "0.5 ms", "1 ms", "1.5 ms", "2 ms"]),
        (1.38, ["0", "500 ms", "1 s"]),
        (7.7, ["0", "2 s", "4 s", "6 s"]),
        (59, ["0", "10 s", "20 s", "30 s", "40 s", "50 s"]),
        (61, ["0", "15 s", "30 s", "45 s", "1 min 00 s"]),
        (500, ["0", "2 min 00 s", "4 min 00 s", "6 min 00 s", "8 min 00 s"]),
        (90_000, ["0", "6 h 00 min", "12 h 00 min", "18 h 00 min", "24 h 00 min"]),
    ],
)  # fmt: skip
def test_ticks_are_at_round_times(seconds: float, words: list[str]) -> None:
    assert [one.words for one in ticks(round(seconds * SECOND))] == words


@given(st.integers(0, 2**64))
def test_ticks_are_few_and_on_the_axis(total_nanos: int) -> None:
    found = ticks(total_nanos)
    assert 1 <= len(found) <= 7
    assert found[0].x == 0
    places = [one.x for one in found]
    assert places == sorted(places)
    assert places[-1] <= 100
    steps = [after - before for before, after in pairwise(places)]
    assert all(step == pytest.approx(steps[0], abs=0.01) for step in steps)
