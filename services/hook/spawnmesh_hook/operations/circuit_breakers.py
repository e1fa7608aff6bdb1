"""The circuit breakers of this replica."""

from spawnmesh_core.clock import Monotonic, monotonic_seconds

from spawnmesh_hook.domain import circuit_breaker
from spawnmesh_hook.domain.circuit_breaker import CircuitBreaker
from spawnmesh_hook.domain.plugins import FailurePolicy, Plugin, RegistrationKey, registration_key


class CircuitBreakers:
    """Keeps one breaker for each plugin that failed recently.

    A plugin that was registered, paused or resumed since starts with a closed breaker.
    """

    def __init__(self, monotonic: Monotonic = monotonic_seconds) -> None:
        self._monotonic = monotonic
        self._breakers: dict[RegistrationKey, CircuitBreaker] = {}

    def admit(self, tenant_id: str, plugin: Plugin) -> bool:
        """Return whether the plugin may be called. If so, the call counts as started."""
        key = registration_key(tenant_id, plugin)
        breaker = self._breakers.get(key)
        if breaker is None:
            return True
        now = self._monotonic()
        if not circuit_breaker.may_call(breaker, now):
            return False
        self._breakers[key] = circuit_breaker.call_started(breaker, now)
        return True

    def call_succeeded(self, tenant_id: str, plugin: Plugin) -> None:
        """Record a valid answer, which closes the breaker."""
        self._breakers.pop(registration_key(tenant_id, plugin), None)

    def call_failed(self, tenant_id: str, plugin: Plugin) -> None:
        """Record a failure of the plugin. Forget the breakers of its earlier registrations."""
        key = registration_key(tenant_id, plugin)
        for other in [one for one in self._breakers if one[:2] == key[:2] and one != key]:
            del self._breakers[other]
        breaker = self._breakers.get(key, CircuitBreaker())
        is_gate = plugin.failure_policy is FailurePolicy.CLOSED
        self._breakers[key] = circuit_breaker.call_failed(
            breaker,
            self._monotonic(),
            longest_open_seconds=(
                circuit_breaker.LONGEST_OPEN_SECONDS_OF_GATES
                if is_gate
                else circuit_breaker.LONGEST_OPEN_SECONDS
            ),
        )

    def call_cancelled(self, tenant_id: str, plugin: Plugin) -> None:
        """Record a call that says nothing about the plugin."""
        key = registration_key(tenant_id, plugin)
        if key in self._breakers:
            self._breakers[key] = circuit_breaker.call_cancelled(self._breakers[key])
