"""When a plugin that fails is no longer called: a circuit breaker, as values."""

from dataclasses import dataclass, replace

FAILURES_TO_OPEN = 3
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """Closed, or open until a time of a monotonic clock; behind that, half open: one probe at a time decides."""

    failure_count: int = 0
    open_until: float | None = None
    pause_seconds: float = FIRST_PAUSE_SECONDS
    probing: bool = False


def may_call(breaker: Breaker, now: float) -> bool:
    """Whether a call may be made: always while closed, and as the one probe once the pause is over."""
    return breaker.open_until is None or (now >= breaker.open_until and not breaker.probing)


def begun(breaker: Breaker) -> Breaker:
    """After a call that may be made has begun."""
    return breaker if breaker.open_until is None else replace(breaker, probing=True)


def succeeded() -> Breaker:
    """After a valid answer: closed, and nothing is remembered."""
    return Breaker()


def failed(breaker: Breaker, now: float) -> Breaker:
    """After no valid answer: opens with the third in a row; a failed probe opens it again for twice as long, up to five minutes."""
    count = breaker.failure_count + 1
    if breaker.open_until is not None:
        if not breaker.probing:  # A call that had begun before it opened.
            return breaker
        pause = min(breaker.pause_seconds * 2, LONGEST_PAUSE_SECONDS)
        return Breaker(count, now + pause, pause)
    if count < FAILURES_TO_OPEN:
        return replace(breaker, failure_count=count)
    return Breaker(count, now + FIRST_PAUSE_SECONDS)


def given_up(breaker: Breaker) -> Breaker:
    """After a call whose caller went away: it tells nothing, and the next one may probe."""
    return replace(breaker, probing=False)
