"""Counters and histograms of a process, sent with OTLP or scraped by Prometheus.

Names and units follow the OpenTelemetry conventions; other names start with `spawnmesh.`. Put no
ids in attributes: each id would create a series.
"""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk.resources import Resource

from spawnmesh_runtime.settings import ProcessSettings, address_parts

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from opentelemetry.sdk.metrics.export import MetricReader
    from prometheus_client import CollectorRegistry

_EXPORT_TIMEOUT_SECONDS = 5
SCOPE = "spawnmesh"


@dataclass(frozen=True, slots=True)
class Metrics:
    """The meter of a process. `port` is the port that Prometheus scrapes, or None."""

    meter: Meter
    port: int | None = None


NO_METRICS = Metrics(NoOpMeter(SCOPE))
"""Metrics that record nothing."""


@contextmanager
def open_metrics(service: str, settings: ProcessSettings, resource: Resource) -> Iterator[Metrics]:
    """Record metrics during the block and send the remaining ones at its end, which blocks.

    Raises SystemExit with one line if `metrics_listen` cannot be bound.
    """
    if not settings.otlp_endpoint and not settings.metrics_listen:
        yield NO_METRICS
        return
    # Imported only if they are used: the SDK and an exporter are a tenth of the start time of a
    # command.
    from opentelemetry.sdk.metrics import MeterProvider

    readers: list[MetricReader] = []
    if settings.otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        exporter = OTLPMetricExporter(endpoint=settings.otlp_endpoint, timeout=_EXPORT_TIMEOUT_SECONDS)
        readers.append(PeriodicExportingMetricReader(exporter))
    registry = None
    if settings.metrics_listen:
        from prometheus_client import CollectorRegistry

        from spawnmesh_runtime.workarounds.prometheus_exemplars import ExemplarReader

        registry = CollectorRegistry()
        readers.append(ExemplarReader(registry))
    provider = MeterProvider(readers, resource, shutdown_on_exit=False)
    try:
        with _exposed(service, settings.metrics_listen, registry) as port:
            yield Metrics(provider.get_meter(SCOPE), port)
    finally:
        provider.shutdown()


@contextmanager
def _exposed(service: str, address: str | None, registry: "CollectorRegistry | None") -> Iterator[int | None]:
    """Serve Prometheus in a separate thread, so that a busy event loop can still be observed."""
    if not address or registry is None:
        yield None
        return
    from prometheus_client import start_http_server

    host, port = address_parts(address)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        why = "the port is in use" if error.errno == errno.EADDRINUSE else "the address cannot be bound"
        raise SystemExit(f"{service}: cannot offer metrics on {address}: {why}") from None
    try:
        yield server.server_port
    finally:
        _stop(server, thread)


def _stop(server: "WSGIServer", thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()
