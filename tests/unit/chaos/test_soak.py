"""The checks that only a soak has."""

from tests.chaos.random_faults.checks import ALL
from tests.chaos.random_faults.facts import Facts
from tests.chaos.random_faults.history import Call, Outcome
from tests.chaos.random_faults.soak import REQUIRED, growing, unanswered

MIB = 2**20


def test_memory_that_rises_to_the_end_is_found() -> None:
    rising = [MIB * (100 + 10 * number) for number in range(12)]
    assert growing({"session": rising}) == ["session grew from 115 to 195 MiB"]


def test_memory_with_a_peak_in_between_does_not_grow() -> None:
    level = [100 * MIB, 101 * MIB, 400 * MIB, 400 * MIB, 102 * MIB, 103 * MIB]
    assert growing({"session": level, "restarted a moment ago": [MIB]}) == []


def test_memory_that_is_not_sampled_shows_nothing() -> None:
    assert growing({}) != []
    assert growing({"session": [MIB, MIB]}) != []


def test_call_without_an_answer_is_found_and_one_that_the_load_gave_up_is_not() -> None:
    lost = Call(
        "spawn", "t-a", 1.0, {}, 2.0, Outcome.UNKNOWN, "DEPENDENCY_UNAVAILABLE", "UNAVAILABLE", "away"
    )
    given_up = Call("wait", "t-a", 1.0, {}, 2.0)
    answered = Call("wait", "t-a", 1.0, {}, 2.0, Outcome.OK)
    found = unanswered(Facts(calls=[lost, given_up, answered]))
    assert found == ["spawn at 1.0 s: UNAVAILABLE DEPENDENCY_UNAVAILABLE: away"]


def test_soak_requires_checks_that_exist() -> None:
    assert set(REQUIRED) <= ALL
