"""The time that a dispatch may take."""

from dataclasses import dataclass

from spawnmesh_core.clock import Monotonic, monotonic_seconds

_LONGEST_SECONDS = 600.0  # Without a deadline: the longest timeout that a plugin may have.
_RESERVED_SHARE = 0.2
_RESERVED_MAX_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """Time for the calls of plugins, up to `ends_at` of the clock `monotonic`."""

    ends_at: float
    monotonic: Monotonic

    def left(self) -> float:
        """Return the seconds left, never negative."""
        return max(0.0, self.ends_at - self.monotonic())


def budget_of(seconds: float, monotonic: Monotonic = monotonic_seconds) -> TimeBudget:
    """Return a budget that starts now."""
    return TimeBudget(monotonic() + seconds, monotonic)


def budget_within(remaining_seconds: float | None, monotonic: Monotonic = monotonic_seconds) -> TimeBudget:
    """Return the budget within the caller's deadline, or ten minutes without one.

    A fifth of the time, at most a second, is reserved. If a plugin takes all its time, the reserve
    suffices to log the call and to answer as the failure policy says.
    """
    total = _LONGEST_SECONDS if remaining_seconds is None else min(remaining_seconds, _LONGEST_SECONDS)
    return budget_of(total - min(total * _RESERVED_SHARE, _RESERVED_MAX_SECONDS), monotonic)
