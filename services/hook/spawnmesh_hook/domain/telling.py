"""When an observer is told again, and when no more."""

from datetime import timedelta

FIRST_PAUSE = timedelta(seconds=2)
LONGEST_PAUSE = timedelta(minutes=30)
MAX_ATTEMPT_COUNT = 58
"""About a day of tries, with pauses that double up to half an hour."""


def pause_after(attempt_count: int) -> timedelta | None:
    """The pause after so many failed tries; None when there is to be no further one."""
    if attempt_count >= MAX_ATTEMPT_COUNT:
        return None
    doublings = min(attempt_count - 1, 20)
    return min(timedelta(seconds=FIRST_PAUSE.total_seconds() * float(2**doublings)), LONGEST_PAUSE)
