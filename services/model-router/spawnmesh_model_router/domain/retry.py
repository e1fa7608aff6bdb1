"""Whether and when the same candidate is asked again."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final

from spawnmesh_model_router.domain.reasons import FailoverReason

RATE_LIMIT_TRIES: Final = 10
TRANSIENT_TRIES: Final = 8
TRANSIENT_WINDOW_SECONDS: Final = 90.0
BASE_SECONDS: Final = 1.0
LONGEST_BACKOFF_SECONDS: Final = 30.0
LONGEST_RETRY_AFTER_SECONDS: Final = 60.0

TRANSIENT: Final = frozenset(
    {
        FailoverReason.RATE_LIMIT,
        FailoverReason.OVERLOADED,
        FailoverReason.TIMEOUT,
        FailoverReason.SERVER_ERROR,
        FailoverReason.EMPTY_RESPONSE,
        FailoverReason.NO_ERROR_DETAILS,
    }
)


@dataclass(frozen=True)
class Wait:
    """Ask the same candidate again after `seconds`."""

    seconds: float


class MoveOnReason(StrEnum):
    """Why the same candidate is not asked again."""

    NOT_TRANSIENT = "NOT_TRANSIENT"
    TRIES_SPENT = "TRIES_SPENT"
    WINDOW_SPENT = "WINDOW_SPENT"
    DEADLINE = "DEADLINE"


@dataclass(frozen=True)
class MoveOn:
    """Leave this candidate."""

    why: MoveOnReason


def after_failure(
    tries: int,
    reason: FailoverReason,
    *,
    retry_after: float | None,
    remaining: float,
    spent: float,
    draw: float,
    most_tries: int | None = None,
) -> Wait | MoveOn:
    """What follows the `tries`-th failed try (1 is the first) on a candidate.

    All times in seconds: `retry_after` as the provider asked, `remaining` to the caller's deadline, `spent` on this
    candidate so far. `draw` is uniform in [0, 1). `most_tries` can only lower the limit. A wait that would not end before
    the deadline is not begun.
    """
    if reason not in TRANSIENT:
        return MoveOn(MoveOnReason.NOT_TRANSIENT)
    limited = reason is FailoverReason.RATE_LIMIT
    limit = RATE_LIMIT_TRIES if limited else TRANSIENT_TRIES
    if tries >= min(limit, limit if most_tries is None else most_tries):
        return MoveOn(MoveOnReason.TRIES_SPENT)
    seconds = _delay(tries, retry_after, draw)
    if not limited and spent + seconds > TRANSIENT_WINDOW_SECONDS:
        return MoveOn(MoveOnReason.WINDOW_SPENT)
    if seconds >= remaining:
        return MoveOn(MoveOnReason.DEADLINE)
    return Wait(seconds)


def _delay(tries: int, retry_after: float | None, draw: float) -> float:
    """Backoff between half and all of its step. Over a provider's own wait the jitter comes on top, so that callers who
    were all told the same time do not come back together."""
    step = min(BASE_SECONDS * 2.0 ** min(tries - 1, 16), LONGEST_BACKOFF_SECONDS)
    backoff = step * (0.5 + draw / 2)
    floor = min(retry_after or 0.0, LONGEST_RETRY_AFTER_SECONDS)
    return backoff if backoff >= floor else min(floor + BASE_SECONDS * draw, LONGEST_RETRY_AFTER_SECONDS)


def tries_allowed(reason: FailoverReason, *, others_ready: bool, before_failover: int, at_last: int) -> int:
    """How often a candidate is asked in all: `at_last` when no other can take over, else `before_failover`.

    Nobody waits for a rate limit to pass while another candidate can answer.
    """
    if not others_ready:
        return at_last
    return 1 if reason is FailoverReason.RATE_LIMIT else before_failover


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Seconds to wait by a Retry-After header, which holds seconds or an HTTP date; None when it holds neither.

    A date that has passed is 0. `now` is aware.
    """
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        return _seconds_until(text, now)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _seconds_until(date: str, now: datetime) -> float | None:
    try:
        then = parsedate_to_datetime(date)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    aware = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    return max((aware - now).total_seconds(), 0.0)
