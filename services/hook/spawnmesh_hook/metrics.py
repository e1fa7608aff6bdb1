"""Metrics of plugin calls.

The names of plugins are no attribute, since tenants choose them.
"""

from datetime import timedelta

from opentelemetry.metrics import Meter

from spawnmesh_hook.domain.delivery_decisions import DeliveryDecision
from spawnmesh_hook.domain.plugins import HookKind

_SECONDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 600)


class DeliveryMetrics:
    """Measures the calls of plugins by this process, over all tenants."""

    def __init__(self, meter: Meter) -> None:
        self._durations = meter.create_histogram(
            "spawnmesh.hook.delivery.duration",
            unit="s",
            description="Duration of the calls of plugins, by hook and by decision in the delivery log.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def record(self, hook: HookKind, decision: DeliveryDecision, latency: timedelta) -> None:
        """Record a call that ended, or that an open circuit breaker prevented."""
        attributes = {"spawnmesh.hook.kind": hook.value.lower(), "spawnmesh.hook.decision": decision.value}
        self._durations.record(latency.total_seconds(), attributes)
