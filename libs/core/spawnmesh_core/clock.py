"""The only module that reads the clock of this machine.

Leases and deadlines that several processes share use the clock of the database instead.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
Monotonic = Callable[[], float]


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def monotonic_seconds() -> float:
    """Return the seconds of a clock that never goes back; only differences have a meaning."""
    return time.monotonic()


def thread_seconds() -> float:
    """Return the processor time of this thread; only differences have a meaning."""
    return time.thread_time()
