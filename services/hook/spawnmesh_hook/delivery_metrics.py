"""How long plugins take and what they decide, as metrics. Tenants choose the names of plugins, so those are in the log alone."""

from datetime import timedelta

from opentelemetry.metrics import Meter

from spawnmesh_hook.domain.plugins import HookKind

_SECONDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 600)


class DeliveryMetrics:
    """Counts over all tenants, in the process that does it."""

    def __init__(self, meter: Meter) -> None:
        self._durations = meter.create_histogram(
            "spawnmesh.hook.delivery.duration",
            unit="s",
            description="How long calls of plugins took, by hook and by the decision that the log of deliveries has.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def delivered(self, hook: HookKind, decision: str, latency: timedelta) -> None:
        """A call of a plugin is over, or was not made because its circuit breaker is open."""
        attributes = {"spawnmesh.hook.kind": hook.value.lower(), "spawnmesh.hook.decision": decision}
        self._durations.record(latency.total_seconds(), attributes)
