"""The metrics of one process of a test."""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from spawnmesh_runtime.metrics import Metrics


class Measured:
    """The metrics of a process, and what it has recorded."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.metrics = Metrics(provider.get_meter("test"))

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return the attributes and the value of each series: a sum, or (count, sum)."""
        data = self._reader.get_metrics_data()
        return [
            (
                dict(point.attributes or {}),
                (point.count, point.sum) if hasattr(point, "count") else point.value,
            )
            for group in (data.resource_metrics if data else ())
            for scope in group.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
