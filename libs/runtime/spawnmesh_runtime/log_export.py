"""The logger of a process whose records go to an OTLP collector.

Only events of the audit log are sent so. All other log events are lines on standard output.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry._logs import Logger, NoOpLogger
from opentelemetry.sdk.resources import Resource

from spawnmesh_runtime.settings import ProcessSettings

_EXPORT_TIMEOUT_SECONDS = 5
SCOPE = "spawnmesh"

NO_LOGGER: Logger = NoOpLogger(SCOPE)
"""A logger that sends nothing."""


@contextmanager
def open_log_export(settings: ProcessSettings, resource: Resource) -> Iterator[Logger]:
    """Return a logger for the block. At its end, send the remaining records, which blocks.

    Records are sent in batches by a thread. Those that the collector does not take in time are
    dropped. Without an endpoint nothing is sent.
    """
    if not settings.otlp_endpoint:
        yield NO_LOGGER
        return
    # Imported only if they are used, as for metrics.
    from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    provider = LoggerProvider(resource, shutdown_on_exit=False)
    exporter = OTLPLogExporter(endpoint=settings.otlp_endpoint, timeout=_EXPORT_TIMEOUT_SECONDS)
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    try:
        yield provider.get_logger(SCOPE)
    finally:
        provider.shutdown()
