"""Metrics of calls of plugins and of messages to webhooks.

Their names are no attribute, since tenants choose them.
"""

from datetime import timedelta

from opentelemetry.metrics import Meter

from spawnmesh_hook.domain.deliveries import DeliveryDecision
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.domain.webhooks import WebhookAttempt, WebhookType

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


class WebhookMetrics:
    """Measures the requests to webhooks by this process, over all tenants."""

    def __init__(self, meter: Meter) -> None:
        self._durations = meter.create_histogram(
            "spawnmesh.hook.webhook.duration",
            unit="s",
            description="Duration of the requests to webhooks, by the type of event and by result.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def record(self, event_type: WebhookType, attempt: WebhookAttempt) -> None:
        """Record a request that ended: `received`, `refused` by a status, or `no_answer`."""
        result = "received" if not attempt.error else "refused" if attempt.status_code else "no_answer"
        attributes = {"spawnmesh.hook.event_type": event_type.value, "spawnmesh.hook.result": result}
        self._durations.record(attempt.latency.total_seconds(), attributes)
