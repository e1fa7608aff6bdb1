"""The circuit breakers of this replica."""

from spawnmesh_core.clock import Monotonic, monotonic_seconds

from spawnmesh_hook.domain import circuit_breaker
from spawnmesh_hook.domain.circuit_breaker import CircuitBreaker
from spawnmesh_hook.domain.plugins import RegistrationKey


class CircuitBreakers:
    """Keeps one breaker for each plugin or webhook that failed recently.

    One that was registered, paused or resumed since has another key, and starts with a closed
    breaker.
    """

    def __init__(self, monotonic: Monotonic = monotonic_seconds) -> None:
        self._monotonic = monotonic
        self._breakers: dict[RegistrationKey, CircuitBreaker] = {}

    def admit(self, key: RegistrationKey) -> bool:
        """Return whether a call may be made. If so, it counts as started."""
        breaker = self._breakers.get(key)
        if breaker is None:
            return True
        now = self._monotonic()
        if not circuit_breaker.may_call(breaker, now):
            return False
        self._breakers[key] = circuit_breaker.call_started(breaker, now)
        return True

    def call_succeeded(self, key: RegistrationKey) -> None:
        """Record a valid answer, which closes the breaker."""
        self._breakers.pop(key, None)

    def call_failed(self, key: RegistrationKey, longest_open_seconds: float) -> None:
        """Record a failure. Forget the breakers of earlier registrations."""
        for other in [one for one in self._breakers if one[:2] == key[:2] and one != key]:
            del self._breakers[other]
        breaker = self._breakers.get(key, CircuitBreaker())
        self._breakers[key] = circuit_breaker.call_failed(
            breaker, self._monotonic(), longest_open_seconds=longest_open_seconds
        )

    def call_cancelled(self, key: RegistrationKey) -> None:
        """Record a call that says nothing about the other side."""
        if key in self._breakers:
            self._breakers[key] = circuit_breaker.call_cancelled(self._breakers[key])
