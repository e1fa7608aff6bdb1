"""The one place that reads this machine's clock. Leases and deadlines that several processes share use the database's instead."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
Monotonic = Callable[[], float]


def utc_now() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


def monotonic_seconds() -> float:
    """Seconds of a clock that never goes back; only differences mean anything."""
    return time.monotonic()
