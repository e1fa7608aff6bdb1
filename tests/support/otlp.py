"""A collector of spans."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


@asynccontextmanager
async def open_collector() -> AsyncIterator[tuple[str, list[Any]]]:
    """Receive spans over OTLP; yield the endpoint and the list of the requests."""
    received: list[Any] = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        async def Export(self, request: Any, context: Any) -> Any:
            received.append(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.aio.server()
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"http://127.0.0.1:{port}", received
    await server.stop(None)


def sent(received: list[Any]) -> list[tuple[str, trace_pb2.Span]]:
    """Return each span with the name of its service."""
    return [
        (_service_of(group), span)
        for request in received
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _service_of(group: trace_pb2.ResourceSpans) -> str:
    [name] = [item.value.string_value for item in group.resource.attributes if item.key == "service.name"]
    return name


def attributes(span: trace_pb2.Span) -> dict[str, str | int]:
    """Return the attributes that are texts or numbers."""
    return {item.key: item.value.string_value or item.value.int_value for item in span.attributes}
