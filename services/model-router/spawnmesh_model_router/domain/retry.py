"""Decide whether and when to call the same candidate again."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final

from spawnmesh_model_router.domain.reasons import TRANSIENT_REASONS, FailoverReason

RATE_LIMIT_TRIES: Final = 10
TRANSIENT_TRIES: Final = 8
TRANSIENT_WINDOW_SECONDS: Final = 90.0
BASE_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 30.0
MAX_COOLDOWN_WAIT_SECONDS: Final = 600.0
"""For callers without a deadline."""


@dataclass(frozen=True)
class Wait:
    """Call the same candidate again after `seconds`."""

    seconds: float


class MoveOnReason(StrEnum):
    """The reason for which the same candidate is not called again."""

    NOT_TRANSIENT = "NOT_TRANSIENT"
    TRIES_SPENT = "TRIES_SPENT"
    WINDOW_SPENT = "WINDOW_SPENT"
    DEADLINE = "DEADLINE"


@dataclass(frozen=True)
class MoveOn:
    """Call the next candidate."""

    why: MoveOnReason


def after_failure(
    tries: int,
    reason: FailoverReason,
    *,
    retry_after: float | None,
    remaining: float,
    spent: float,
    draw: float,
    max_tries: int | None = None,
) -> Wait | MoveOn:
    """Decide what follows the `tries`-th failed call (1 is the first) of a candidate.

    Times are in seconds: `retry_after` is the provider's request, `remaining` the time to the
    caller's deadline, `spent` the time on this candidate so far. `draw` is uniform in [0, 1).
    `max_tries` can only lower the limit. A wait ends before the deadline, or it does not begin.
    """
    if reason not in TRANSIENT_REASONS:
        return MoveOn(MoveOnReason.NOT_TRANSIENT)
    limited = reason is FailoverReason.RATE_LIMIT
    limit = RATE_LIMIT_TRIES if limited else TRANSIENT_TRIES
    if tries >= min(limit, limit if max_tries is None else max_tries):
        return MoveOn(MoveOnReason.TRIES_SPENT)
    seconds = _delay(tries, retry_after, draw)
    if not limited and spent + seconds > TRANSIENT_WINDOW_SECONDS:
        return MoveOn(MoveOnReason.WINDOW_SPENT)
    if seconds >= remaining:
        return MoveOn(MoveOnReason.DEADLINE)
    return Wait(seconds)


def _delay(tries: int, retry_after: float | None, draw: float) -> float:
    """Return the backoff: between half and all of its step.

    If the provider asks for a longer wait, the jitter is added to it. Otherwise callers with the
    same `retry_after` would all return at the same time.
    """
    step = min(BASE_SECONDS * 2.0 ** min(tries - 1, 16), MAX_BACKOFF_SECONDS)
    backoff = step * (0.5 + draw / 2)
    floor = retry_after or 0.0
    return backoff if backoff >= floor else floor + BASE_SECONDS * draw


def tries_allowed(
    reason: FailoverReason, *, is_silent: bool, others_ready: bool, before_failover: int, at_last: int
) -> int:
    """Return the total number of calls of a candidate.

    That is `at_last` if no other candidate can take over, otherwise `before_failover`. It is 1
    after a rate limit, and if the candidate was silent for the time of an attempt: another
    candidate can answer at once.
    """
    if not others_ready:
        return at_last
    return 1 if reason is FailoverReason.RATE_LIMIT or is_silent else before_failover


def cooldown_wait(seconds: Iterable[float], remaining: float, draw: float) -> float | None:
    """Return how long to wait until the first candidate is out of its cooldown.

    `seconds` are the rests of the candidates' cooldowns. None if there are none, or if the caller's
    `remaining` seconds end first: then it is told when to call again.
    """
    first = min(seconds, default=math.inf) + BASE_SECONDS * draw
    return first if first < min(remaining, MAX_COOLDOWN_WAIT_SECONDS) else None


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header, which has seconds or an HTTP date; None for other
    text.

    A date in the past is 0. `now` has a time zone.
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
