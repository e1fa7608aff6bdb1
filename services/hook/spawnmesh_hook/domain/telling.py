"""When an observer is told again, and when no more."""

from collections.abc import Mapping
from datetime import timedelta

FIRST_PAUSE = timedelta(seconds=2)
LONGEST_PAUSE = timedelta(minutes=30)
MAX_ATTEMPT_COUNT = 58
"""About a day of tries, with pauses that double up to half an hour."""


def room_for_more(at_once: int, busy: Mapping[str, int]) -> tuple[int, list[str]]:
    """How many more may be told, given how many of each tenant are being told; and the tenants that are not to be among them.

    A tenant may have half of all, so that observers of one that take their time keep nobody else's from hearing.
    """
    share = max(1, at_once // 2)
    full = [tenant for tenant, count in busy.items() if count >= share]
    most = max((count for count in busy.values() if count < share), default=0)
    return min(at_once - sum(busy.values()), share - most), full


def pause_after(attempt_count: int) -> timedelta | None:
    """The pause after so many failed tries; None when there is to be no further one."""
    if attempt_count >= MAX_ATTEMPT_COUNT:
        return None
    doublings = min(attempt_count - 1, 20)
    return min(timedelta(seconds=FIRST_PAUSE.total_seconds() * float(2**doublings)), LONGEST_PAUSE)
