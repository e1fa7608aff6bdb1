"""What Prometheus fetches, with the traces behind it: each bucket of a histogram names a call that fell into it, where that call was traced.

The SDK keeps these exemplars and the exporter leaves them out, so they are put beside its samples here. Prometheus sees them in the OpenMetrics
format, which it asks for unless told otherwise.
"""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import Histogram, MetricsData
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Exemplar as ShownExemplar
from prometheus_client.samples import Sample

_Labels = frozenset[tuple[str, str]]


class ExemplarReader(PrometheusMetricReader):
    """As the exporter's own, and what it fetches for `registry` has exemplars."""

    def __init__(self, registry: CollectorRegistry) -> None:
        without = CollectorRegistry()
        super().__init__(scope_info_enabled=False, registry=without)
        self._without = without
        self._one_at_a_time = threading.Lock()
        self._known: dict[tuple[str, _Labels], Sequence[Exemplar]] = {}
        registry.register(_Fetched(self))

    def fetch(self) -> Iterator[Metric]:
        """All families as they are now."""
        with self._one_at_a_time:
            families = list(self._without.collect())
            known = self._known
        for family in families:
            if family.type == "histogram":
                family.samples = list(_shown(family.samples, known))
            yield family

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        # The SDK gives each once. Whoever else fetches is shown it, too, until the series has newer ones.
        self._known = {**self._known, **dict(_exemplars(metrics_data))}
        super()._receive_metrics(metrics_data, timeout_millis, **kwargs)


class _Fetched:
    def __init__(self, reader: ExemplarReader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[Metric]:
        return self._reader.fetch()


def _exemplars(data: MetricsData) -> Iterator[tuple[tuple[str, _Labels], Sequence[Exemplar]]]:
    """Those of each series of a histogram."""
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if not isinstance(metric.data, Histogram):
                    continue
                for point in metric.data.data_points:
                    traced = [one for one in point.exemplars if one.trace_id]
                    if traced:
                        yield (_name(metric.name), _labels(point.attributes or {})), traced


def _shown(samples: Sequence[Sample], known: Mapping[tuple[str, _Labels], Sequence[Exemplar]]) -> Iterator[Sample]:
    """The samples of a family, whose name is the instrument's with the unit behind it; a series has its buckets in order."""
    names = {name for name, _ in known}
    least = float("-inf")
    for sample in samples:
        if not sample.name.endswith("_bucket"):
            least = float("-inf")
            yield sample
            continue
        labels = dict(sample.labels)
        most = float(labels.pop("le"))
        least = least if most > least else float("-inf")
        name = max((name for name in names if sample.name.startswith(f"{name}_")), key=len, default="")
        found = [one for one in known.get((name, _labels(labels)), ()) if least < one.value <= most]
        least = most
        yield sample._replace(exemplar=_as_shown(found[-1])) if found else sample


def _as_shown(exemplar: Exemplar) -> ShownExemplar:
    ids = {"trace_id": f"{exemplar.trace_id or 0:032x}", "span_id": f"{exemplar.span_id or 0:016x}"}
    return ShownExemplar(ids, exemplar.value, exemplar.time_unix_nano / 1e9)


def _name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_:]", "_", name)


def _labels(labels: Mapping[str, Any]) -> _Labels:
    """Without those that are empty: every series of a family is shown with the labels of all."""
    return frozenset((_name(name), str(value)) for name, value in labels.items() if str(value))
