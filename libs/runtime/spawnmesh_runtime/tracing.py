"""The tracer of a process, and the way of its spans to the collector."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import structlog
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import Tracer

from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.span_journal import JournaledExporter, SpanJournal
from spawnmesh_runtime.span_recovery import JournalKeeper
from spawnmesh_runtime.telemetry import next_span_id

_EXPORT_TIMEOUT_SECONDS = 5


class DerivedIds(RandomIdGenerator):
    """Random ids, except for the spans of `telemetry.record_derived`."""

    def generate_span_id(self) -> int:
        return next_span_id() or super().generate_span_id()


@contextmanager
def open_tracing(settings: ProcessSettings, resource: Resource) -> Iterator[Tracer]:
    """Return a tracer for the block. At its end, send the remaining spans.

    Without an endpoint the tracer records nothing, but it creates ids: logs and errors then have a
    trace id. With a journal, the spans also survive a crash of the process.
    """
    endpoint, directory = settings.otlp_endpoint, settings.span_journal_dir
    sampler = ParentBased(TraceIdRatioBased(settings.trace_sample_ratio)) if endpoint else ALWAYS_OFF
    provider = TracerProvider(
        sampler=sampler, resource=resource, id_generator=DerivedIds(), shutdown_on_exit=False
    )
    with ExitStack() as closing:
        if endpoint:
            exporter = _exporter(endpoint)
            if directory and (journal := _open_journal(directory, resource)):
                keeper = JournalKeeper(journal, directory, partial(_export, endpoint))
                keeper.start()
                closing.callback(journal.close)
                closing.callback(keeper.join)
                provider.add_span_processor(journal)
                exporter = JournaledExporter(exporter, journal)
                # Before the shutdown: both may wait for a collector that does not answer.
                closing.callback(keeper.stop)
            provider.add_span_processor(BatchSpanProcessor(exporter))
        closing.callback(provider.shutdown)
        yield provider.get_tracer("spawnmesh")


def _open_journal(directory: Path, resource: Resource) -> SpanJournal | None:
    """Return the journal; None if it cannot be written, for the process can do without."""
    try:
        return SpanJournal(directory, resource)
    except OSError as error:
        structlog.get_logger().warning("span_journal_unavailable", error=str(error))
        return None


def _export(endpoint: str, spans: Sequence[ReadableSpan]) -> bool:
    """Export spans of another process over a connection of their own, which is rarely needed."""
    exporter = _exporter(endpoint)
    try:
        return exporter.export(spans) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()


def _exporter(endpoint: str) -> SpanExporter:
    # Imported only if it is used: the import is a tenth of the start time of a command.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_SECONDS)
