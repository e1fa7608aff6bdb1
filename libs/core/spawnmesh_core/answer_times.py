"""Longer timeouts for a dependency that is slow at the moment."""

from spawnmesh_core.clock import Monotonic, monotonic_seconds

_HALF_LIFE_SECONDS = 10.0
_TIMES_SLOWEST = 3.0
_MAX_FACTOR = 3.0


class AnswerTimes:
    """Derives the factor of timeouts from the answers to recent questions.

    A busy machine is slow at every answer, and a silent dependency was as fast as usual before.
    """

    def __init__(self, usual_seconds: float, *, monotonic: Monotonic = monotonic_seconds) -> None:
        self._usual_seconds = usual_seconds
        self._monotonic = monotonic
        self._slowest = 0.0
        self._at = 0.0

    def record(self, seconds: float) -> None:
        """Note that an answer took so long."""
        self._slowest, self._at = max(seconds, self._recent()), self._monotonic()

    def timeout_factor(self) -> float:
        """Return the factor for the usual time to wait: 1 to 3.

        A question may take three times as long as the slowest recent answer. An answer counts half
        after ten seconds.
        """
        return min(max(1.0, _TIMES_SLOWEST * self._recent() / self._usual_seconds), _MAX_FACTOR)

    def _recent(self) -> float:
        return float(self._slowest * 0.5 ** ((self._monotonic() - self._at) / _HALF_LIFE_SECONDS))
