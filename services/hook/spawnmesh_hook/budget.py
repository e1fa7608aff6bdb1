"""How long a dispatch may take in all."""

from dataclasses import dataclass

from spawnmesh_core.clock import Monotonic, monotonic_seconds

_MOST_SECONDS = 600.0  # without a deadline of the caller's: as long as a single plugin may take at most
_KEPT_SHARE = 0.2
_KEPT_MOST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Time for the calls of plugins; what is left of it shrinks as `monotonic` goes on."""

    ends_at: float
    monotonic: Monotonic

    def left(self) -> float:
        """Seconds, never negative."""
        return max(0.0, self.ends_at - self.monotonic())


def budget_of(seconds: float, monotonic: Monotonic = monotonic_seconds) -> Budget:
    """The budget that begins now."""
    return Budget(monotonic() + seconds, monotonic)


def budget_within(remaining_seconds: float | None, monotonic: Monotonic = monotonic_seconds) -> Budget:
    """The budget inside a caller's deadline, or of ten minutes without one.

    A fifth, at most a second, is kept back: so that a plugin which takes all the time still leaves enough to log it and to answer
    according to its failure policy.
    """
    whole = _MOST_SECONDS if remaining_seconds is None else min(remaining_seconds, _MOST_SECONDS)
    return budget_of(whole - min(whole * _KEPT_SHARE, _KEPT_MOST_SECONDS), monotonic)
