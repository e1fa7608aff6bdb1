"""Counters and histograms of a process: sent over OTLP where there is a collector, and fetched by Prometheus where it is let in.

Names and units are those of the OpenTelemetry conventions where they have one, and `spawnmesh.*` else. No ids in attributes: each would be a
series of its own.
"""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, start_http_server

from spawnmesh_runtime.exemplars import ExemplarReader
from spawnmesh_runtime.settings import ProcessSettings, address_parts

_EXPORT_TIMEOUT_SECONDS = 5
SCOPE = "spawnmesh"


@dataclass(frozen=True, slots=True)
class Metrics:
    """Where a process's instruments are made. `port` is what Prometheus fetches from, None where it is not let in."""

    meter: Meter
    port: int | None = None


NO_METRICS = Metrics(NoOpMeter(SCOPE))
"""Takes everything and keeps nothing."""


@contextmanager
def open_metrics(service: str, settings: ProcessSettings, resource: Resource) -> Iterator[Metrics]:
    """Measures for the block; at its end, what was not sent yet is. Blocks for as long as that takes.

    Ends the process with one line where `metrics_listen` cannot be had.
    """
    readers: list[MetricReader] = []
    if settings.otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
            OTLPMetricExporter,
        )  # As with the exporter of spans.

        exporter = OTLPMetricExporter(endpoint=settings.otlp_endpoint, timeout=_EXPORT_TIMEOUT_SECONDS)
        readers.append(PeriodicExportingMetricReader(exporter))
    registry = CollectorRegistry()
    if settings.metrics_listen:
        readers.append(ExemplarReader(registry))
    if not readers:
        yield NO_METRICS
        return
    provider = MeterProvider(readers, resource, shutdown_on_exit=False)
    try:
        with _exposed(service, settings.metrics_listen, registry) as port:
            yield Metrics(provider.get_meter(SCOPE), port)
    finally:
        provider.shutdown()


@contextmanager
def _exposed(service: str, address: str | None, registry: CollectorRegistry) -> Iterator[int | None]:
    """Answers Prometheus in a thread of its own, so that a busy event loop can still be looked at."""
    if not address:
        yield None
        return
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


def _stop(server: WSGIServer, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()
