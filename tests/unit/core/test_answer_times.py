"""The patience with a dependency follows its recent answers."""

from spawnmesh_core.answer_times import AnswerTimes


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_patience_is_the_usual_one_while_answers_are_fast() -> None:
    times = AnswerTimes(0.5)
    assert times.patience() == 1.0
    times.record(0.1)
    assert times.patience() == 1.0


def test_patience_grows_with_slow_answers_up_to_three_times() -> None:
    times = AnswerTimes(0.5, monotonic=Clock())
    times.record(0.25)
    assert times.patience() == 1.5
    times.record(0.1)
    assert times.patience() == 1.5
    times.record(9.0)
    assert times.patience() == 3.0


def test_slow_answer_counts_half_after_ten_seconds() -> None:
    clock = Clock()
    times = AnswerTimes(0.5, monotonic=clock)
    times.record(0.5)
    clock.now += 10
    assert times.patience() == 1.5
    clock.now += 60
    assert times.patience() == 1.0
