"""Metrics of the audit log of a process."""

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation


class AuditMetrics:
    """Counts calls, and observes how many events wait to be stored."""

    def __init__(self, meter: Meter, pending: Callable[[], int]) -> None:
        self._calls = meter.create_counter(
            "spawnmesh.audit.calls",
            unit="{call}",
            description="Calls for the audit log by result: stored, or lost because too many were waiting.",
        )
        self.stored(0)
        self.lost(0)  # Otherwise no alert would see the first one.
        self._pending = pending
        meter.create_observable_gauge(
            "spawnmesh.audit.pending",
            callbacks=[self._observe],
            unit="{event}",
            description="Events of the audit log that wait in the memory of this process.",
        )

    def stored(self, call_count: int) -> None:
        """Count calls whose events are stored."""
        self._calls.add(call_count, {"spawnmesh.audit.result": "stored"})

    def lost(self, call_count: int = 1) -> None:
        """Count calls that are not recorded."""
        self._calls.add(call_count, {"spawnmesh.audit.result": "lost"})

    def _observe(self, _options: CallbackOptions) -> Iterable[Observation]:
        yield Observation(self._pending())
