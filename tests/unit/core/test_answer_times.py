"""The timeouts of a dependency follow its recent answers."""

from spawnmesh_core.answer_times import AnswerTimes


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_timeouts_are_the_usual_ones_while_answers_are_fast() -> None:
    times = AnswerTimes(0.5)
    assert times.timeout_factor() == 1.0
    times.record(0.1)
    assert times.timeout_factor() == 1.0


def test_timeouts_grow_with_slow_answers_up_to_three_times() -> None:
    times = AnswerTimes(0.5, monotonic=Clock())
    times.record(0.25)
    assert times.timeout_factor() == 1.5
    times.record(0.1)
    assert times.timeout_factor() == 1.5
    times.record(9.0)
    assert times.timeout_factor() == 3.0


def test_slow_answer_counts_half_after_ten_seconds() -> None:
    clock = Clock()
    times = AnswerTimes(0.5, monotonic=clock)
    times.record(0.5)
    clock.now += 10
    assert times.timeout_factor() == 1.5
    clock.now += 60
    assert times.timeout_factor() == 1.0
