"""The circuit breaker of a plugin, as values.

It counts failures. A plugin that was found silent, since its health service had answered and
stopped, does not count here: the probe of its channel (`PluginProbe`) refuses calls from then on,
and until a health check is answered. Work that waits for a CLOSED plugin is thus never refused
without having asked the plugin within FIRST_OPEN_SECONDS: by a call, or by a health check that the
plugin did not answer.
"""

from dataclasses import dataclass, replace

FAILURES_TO_OPEN = 3
FIRST_OPEN_SECONDS = 10.0
LONGEST_OPEN_SECONDS = 300.0
"""For plugins that are skipped while their breaker is open."""
LONGEST_PROBE_SECONDS = FIRST_OPEN_SECONDS
LONGEST_OPEN_SECONDS_OF_GATES = FIRST_OPEN_SECONDS
"""For plugins whose failure policy is CLOSED: work waits for their answer."""


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Closed while `open_until` is None, else open until that time of a monotonic clock.

    After that time it is half open: a probe decides whether it closes. Another one may follow when
    the last one has begun `LONGEST_PROBE_SECONDS` ago, since a plugin may take minutes to answer.
    """

    failure_count: int = 0
    open_until: float | None = None
    open_seconds: float = FIRST_OPEN_SECONDS
    probe_time: float | None = None
    """The time at which the probe began that has not ended."""


def may_call(breaker: CircuitBreaker, now: float) -> bool:
    """Return whether a call is allowed: any call while closed, a probe while half open."""
    if breaker.open_until is None:
        return True
    may_probe = breaker.probe_time is None or now - breaker.probe_time >= LONGEST_PROBE_SECONDS
    return now >= breaker.open_until and may_probe


def call_started(breaker: CircuitBreaker, now: float) -> CircuitBreaker:
    """Return the breaker after an allowed call has started."""
    return breaker if breaker.open_until is None else replace(breaker, probe_time=now)


def call_failed(
    breaker: CircuitBreaker, now: float, *, longest_open_seconds: float = LONGEST_OPEN_SECONDS
) -> CircuitBreaker:
    """Return the breaker after a failure of the plugin.

    The third failure in a row opens it. A failed probe opens it again for twice as long, up to the
    limit.
    """
    count = breaker.failure_count + 1
    if breaker.open_until is not None:
        if breaker.probe_time is None:  # The call had started before the breaker opened.
            return breaker
        open_seconds = min(breaker.open_seconds * 2, longest_open_seconds)
        return CircuitBreaker(count, now + open_seconds, open_seconds)
    if count < FAILURES_TO_OPEN:
        return replace(breaker, failure_count=count)
    return CircuitBreaker(count, now + FIRST_OPEN_SECONDS)


def call_cancelled(breaker: CircuitBreaker) -> CircuitBreaker:
    """Return the breaker after a call that says nothing about the plugin.

    The next call may probe.
    """
    return replace(breaker, probe_time=None)
