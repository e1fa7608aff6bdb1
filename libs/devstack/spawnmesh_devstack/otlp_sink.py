"""Receives traces over OTLP/gRPC and writes a JSON line for each span; metrics it takes and forgets.

`python -m spawnmesh_devstack.otlp_sink`
"""

import argparse
import asyncio
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TextIO

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from spawnmesh_devstack.ports import LOOPBACK

_KIND_PREFIX = "SPAN_KIND_"
_STATUS_PREFIX = "STATUS_CODE_"
_STOP_SECONDS = 1.0


class TraceSink(trace_service_pb2_grpc.TraceServiceServicer):
    """Appends to a stream; an export is answered once its spans are flushed to the operating system."""

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines

    async def Export(
        self,
        request: trace_service_pb2.ExportTraceServiceRequest,
        context: grpc.aio.ServicerContext[
            trace_service_pb2.ExportTraceServiceRequest, trace_service_pb2.ExportTraceServiceResponse
        ],
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Writes every span of the batch."""
        for resource_spans in request.resource_spans:
            for record in span_records(resource_spans):
                self._lines.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._lines.flush()
        return trace_service_pb2.ExportTraceServiceResponse()


class MetricSink(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Answers whoever sends metrics, who would complain otherwise."""

    async def Export(
        self,
        request: metrics_service_pb2.ExportMetricsServiceRequest,
        context: grpc.aio.ServicerContext[
            metrics_service_pb2.ExportMetricsServiceRequest, metrics_service_pb2.ExportMetricsServiceResponse
        ],
    ) -> metrics_service_pb2.ExportMetricsServiceResponse:
        """Forgets them."""
        return metrics_service_pb2.ExportMetricsServiceResponse()


def span_records(resource_spans: ResourceSpans) -> Iterator[dict[str, object]]:
    """The JSON value of each span; ids in hex, times in nanoseconds since 1970, bytes in hex."""
    service = attributes_of(resource_spans.resource.attributes).get("service.name", "")
    for scope_spans in resource_spans.scope_spans:
        for span in scope_spans.spans:
            yield {
                "trace_id": span.trace_id.hex(),
                "span_id": span.span_id.hex(),
                "parent_span_id": span.parent_span_id.hex(),
                "name": span.name,
                "service": service,
                "start_unix_nanos": span.start_time_unix_nano,
                "end_unix_nanos": span.end_time_unix_nano,
                "kind": Span.SpanKind.Name(span.kind).removeprefix(_KIND_PREFIX).lower(),
                "status": Status.StatusCode.Name(span.status.code).removeprefix(_STATUS_PREFIX).lower(),
                "status_message": span.status.message,
                "attributes": attributes_of(span.attributes),
                "links": [_link(link) for link in span.links],
                "events": [_event(event) for event in span.events],
            }


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, object]:
    """Plain values for a list of attributes."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _link(link: Span.Link) -> dict[str, object]:
    return {
        "trace_id": link.trace_id.hex(),
        "span_id": link.span_id.hex(),
        "attributes": attributes_of(link.attributes),
    }


def _event(event: Span.Event) -> dict[str, object]:
    return {
        "name": event.name,
        "unix_nanos": event.time_unix_nano,
        "attributes": attributes_of(event.attributes),
    }


def _value(value: AnyValue) -> object:
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return attributes_of(value.kvlist_value.values)
        case "bytes_value":
            return value.bytes_value.hex()
        case scalar:
            return getattr(value, scalar)


async def serve(port: int, lines: TextIO) -> None:
    """Serves on loopback until SIGTERM or SIGINT."""
    server = grpc.aio.server()
    # The generated functions have no annotations, nor a stub file.
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(TraceSink(lines), server)  # type: ignore[no-untyped-call]
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(MetricSink(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"{LOOPBACK}:{port}")
    stop = asyncio.Event()
    for number in (SIGTERM, SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.start()
    await stop.wait()
    await server.stop(_STOP_SECONDS)


def main() -> None:
    """The command line: the port to listen on and the file to append to (0600)."""
    parser = argparse.ArgumentParser(prog="python -m spawnmesh_devstack.otlp_sink", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--file", type=Path, required=True)
    arguments = parser.parse_args()
    descriptor = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as lines:
        asyncio.run(serve(arguments.port, lines))


if __name__ == "__main__":
    main()
