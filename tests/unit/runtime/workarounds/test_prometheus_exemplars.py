"""Scraped histograms have exemplars; the exporter of OpenTelemetry writes none."""

from collections.abc import Callable
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from spawnmesh_runtime.workarounds.prometheus_exemplars import ExemplarReader


def exemplars(reader: Callable[[CollectorRegistry], MetricReader]) -> list[Any]:
    """Record one traced value, and return the exemplars of the scraped samples."""
    registry = CollectorRegistry()
    meters = MeterProvider([reader(registry)], shutdown_on_exit=False)
    try:
        durations = meters.get_meter("test").create_histogram("durations", unit="s")
        tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
        with tracer.start_as_current_span("call"):
            durations.record(0.2)
        samples = [sample for family in registry.collect() for sample in family.samples]
        return [sample.exemplar for sample in samples if sample.exemplar is not None]
    finally:
        meters.shutdown()


def test_the_workaround_is_still_needed() -> None:
    found = exemplars(lambda registry: PrometheusMetricReader(registry=registry))
    assert found == [], "remove workarounds/prometheus_exemplars.py"


def test_a_bucket_names_the_trace_of_a_call() -> None:
    [found] = exemplars(ExemplarReader)
    assert (found.value, len(found.labels["trace_id"])) == (0.2, 32)
