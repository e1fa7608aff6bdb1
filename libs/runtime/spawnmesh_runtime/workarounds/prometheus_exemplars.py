"""Add exemplars to the metrics that Prometheus scrapes.

Upstream: https://github.com/open-telemetry/opentelemetry-python/pull/4178 adds histogram exemplars
to the Prometheus exporter; the pinned version does not have it.

Behaviour: the OpenTelemetry SDK keeps exemplars, and its Prometheus exporter drops them.

Why here: a bucket of a histogram names the trace of a call that fell into it. Prometheus reads
exemplars in the OpenMetrics format, which it requests by default.

Remove it when the exporter writes exemplars. The subclass overrides `_receive_metrics`, the hook
that the SDK declares for metric readers.
"""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import Histogram, MetricsData
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Exemplar as PrometheusExemplar
from prometheus_client.samples import Sample

_Labels = frozenset[tuple[str, str]]


class ExemplarReader(PrometheusMetricReader):
    """A PrometheusMetricReader whose samples in `registry` have exemplars."""

    def __init__(self, registry: CollectorRegistry) -> None:
        inner_registry = CollectorRegistry()
        super().__init__(scope_info_enabled=False, registry=inner_registry)
        self._inner_registry = inner_registry
        self._scrape_lock = threading.Lock()
        self._exemplars_by_series: dict[tuple[str, _Labels], Sequence[Exemplar]] = {}
        registry.register(_Collector(self))

    def fetch(self) -> Iterator[Metric]:
        """Return all metric families with their current values."""
        with self._scrape_lock:
            families = list(self._inner_registry.collect())
            known = self._exemplars_by_series
        for family in families:
            if family.type == "histogram":
                family.samples = list(_with_exemplars(family.samples, known))
            yield family

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        # The SDK reports an exemplar once. Later scrapes show it until the series has a newer one.
        self._exemplars_by_series = {**self._exemplars_by_series, **dict(_exemplars(metrics_data))}
        super()._receive_metrics(metrics_data, timeout_millis, **kwargs)


class _Collector:
    def __init__(self, reader: ExemplarReader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[Metric]:
        return self._reader.fetch()


def _exemplars(data: MetricsData) -> Iterator[tuple[tuple[str, _Labels], Sequence[Exemplar]]]:
    """Yield the exemplars of each series of a histogram that have a trace."""
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if not isinstance(metric.data, Histogram):
                    continue
                for point in metric.data.data_points:
                    traced = [one for one in point.exemplars if one.trace_id]
                    if traced:
                        yield (_name(metric.name), _labels(point.attributes or {})), traced


def _with_exemplars(
    samples: Sequence[Sample], known: Mapping[tuple[str, _Labels], Sequence[Exemplar]]
) -> Iterator[Sample]:
    """Return the samples of a family with exemplars.

    The name of a family is the name of the instrument and its unit. A series has its buckets in
    ascending order.
    """
    names = {name for name, _ in known}
    lower = float("-inf")
    for sample in samples:
        if not sample.name.endswith("_bucket"):
            lower = float("-inf")
            yield sample
            continue
        labels = dict(sample.labels)
        upper = float(labels.pop("le"))
        lower = lower if upper > lower else float("-inf")
        name = max((name for name in names if sample.name.startswith(f"{name}_")), key=len, default="")
        found = [one for one in known.get((name, _labels(labels)), ()) if lower < one.value <= upper]
        lower = upper
        yield sample._replace(exemplar=_prometheus_exemplar(found[-1])) if found else sample


def _prometheus_exemplar(exemplar: Exemplar) -> PrometheusExemplar:
    ids = {"trace_id": f"{exemplar.trace_id or 0:032x}", "span_id": f"{exemplar.span_id or 0:016x}"}
    return PrometheusExemplar(ids, exemplar.value, exemplar.time_unix_nano / 1e9)


def _name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_:]", "_", name)


def _labels(labels: Mapping[str, Any]) -> _Labels:
    """Return the labels without empty ones: each series shows the labels of all series
    of its family.
    """
    return frozenset((_name(name), str(value)) for name, value in labels.items() if str(value))
