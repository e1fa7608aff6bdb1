"""Samples of a profile are counted by function."""

from tests.bench.profile import read_samples


def test_samples_are_counted_in_the_function_and_in_what_calls_it() -> None:
    functions = read_samples(
        "main (a.py:1);work (b.py:2) 3\nmain (a.py:1) 2\nmain (a.py:1);main (a.py:1) 1\n"
    )
    assert functions.total == 6
    assert functions.own == {"work (b.py:2)": 3, "main (a.py:1)": 3}
    assert functions.cumulative == {"main (a.py:1)": 6, "work (b.py:2)": 3}
