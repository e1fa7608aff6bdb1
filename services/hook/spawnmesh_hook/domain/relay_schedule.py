"""When the outbox relay retries a delivery, and how tenants share its capacity."""

from collections.abc import Mapping
from datetime import timedelta

FIRST_BACKOFF = timedelta(seconds=2)
LONGEST_BACKOFF = timedelta(minutes=30)
MAX_ATTEMPT_COUNT = 58
"""About a day of attempts, with a backoff that doubles up to half an hour."""


def free_capacity(concurrency: int, in_flight: Mapping[str, int]) -> tuple[int, list[str]]:
    """Return how many more deliveries may start, and the tenants that have reached their share.

    `in_flight` counts the running deliveries of each tenant. A tenant may use half of all, so that
    its slow observers do not delay those of other tenants.
    """
    share = max(1, concurrency // 2)
    full = [tenant for tenant, count in in_flight.items() if count >= share]
    most = max((count for count in in_flight.values() if count < share), default=0)
    return min(concurrency - sum(in_flight.values()), share - most), full


def backoff_after(attempt_count: int) -> timedelta | None:
    """Return the delay after this many failed attempts, or None if there is no further attempt."""
    if attempt_count >= MAX_ATTEMPT_COUNT:
        return None
    doublings = min(attempt_count - 1, 20)
    return min(timedelta(seconds=FIRST_BACKOFF.total_seconds() * float(2**doublings)), LONGEST_BACKOFF)
