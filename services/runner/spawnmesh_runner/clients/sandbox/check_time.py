"""The bound of the time that a check of a program takes.

A program can have so many files, mappings or descriptors that a check takes minutes. Meanwhile
nothing would bound what it uses.
"""

from spawnmesh_core.clock import monotonic_seconds, thread_seconds

MAX_CHECK_SECONDS = 2.0
"""The processor time of a check. Other work of the machine does not count: a program must not have
the programs of others ended by keeping the machine busy.
"""
# Of that time. Nothing else bounds a check that has to wait for each step.
_MAX_PASSING_FACTOR = 5


class CheckTooLong(Exception):
    """A check has taken all the time that it may take."""


class CheckTime:
    """The time of one check. It belongs to the thread that makes it."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._end = thread_seconds() + max_seconds
        self._passing_end = monotonic_seconds() + _MAX_PASSING_FACTOR * max_seconds

    def go_on(self) -> None:
        """Raise CheckTooLong if the time is over. It takes microseconds: call it at each step."""
        if thread_seconds() > self._end or monotonic_seconds() > self._passing_end:
            raise CheckTooLong(
                f"the check of its files and memory took more than {self._max_seconds:g} seconds"
            )
