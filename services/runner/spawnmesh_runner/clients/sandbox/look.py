"""The bound of the time that a look at a program takes.

A program can have so many files, mappings or descriptors that a look takes minutes. Meanwhile
nothing would bound what it uses.
"""

from spawnmesh_core.clock import monotonic_seconds, thread_seconds

MAX_LOOK_SECONDS = 2.0
"""The processor time of a look. What else keeps the machine busy does not count: a program must not
have those of others ended by that.
"""
# Of that time. Nothing else bounds a look that has to wait for each step.
_MAX_PASSING_FACTOR = 5


class LookTooLong(Exception):
    """A look has taken all the time that it may take."""


class Look:
    """The time of one look. It belongs to the thread that makes it."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._end = thread_seconds() + max_seconds
        self._passing_end = monotonic_seconds() + _MAX_PASSING_FACTOR * max_seconds

    def go_on(self) -> None:
        """Raise LookTooLong if the time is over. Call it at each step, which takes microseconds."""
        if thread_seconds() > self._end or monotonic_seconds() > self._passing_end:
            raise LookTooLong(f"to look at its files and memory took more than {self._max_seconds:g} seconds")
