"""A collector of spans, measurements and log records."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1 import trace_pb2

_SIGNALS: dict[str, Any] = {
    "trace": trace_service_pb2,
    "metrics": metrics_service_pb2,
    "logs": logs_service_pb2,
}


@asynccontextmanager
async def open_collector(
    signal: str = "trace", *, status: grpc.StatusCode | None = None
) -> AsyncIterator[tuple[str, list[Any]]]:
    """Receive all signals over OTLP; yield the endpoint and the list of the requests of one.

    With a status, each request is refused.
    """
    received: dict[str, list[Any]] = {name: [] for name in _SIGNALS}

    def handler_of(name: str) -> Any:
        service = _SIGNALS[name].DESCRIPTOR.services_by_name[f"{name.title()}Service"]
        messages = _SIGNALS[name], f"Export{name.title()}Service"

        async def export(request: Any, context: Any) -> Any:
            received[name].append(request)
            if status is not None:
                await context.abort(status, "no")
            return getattr(messages[0], f"{messages[1]}Response")()

        method = grpc.unary_unary_rpc_method_handler(
            export,
            request_deserializer=getattr(messages[0], f"{messages[1]}Request").FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
        return grpc.method_handlers_generic_handler(service.full_name, {"Export": method})

    server = grpc.aio.server()
    server.add_generic_rpc_handlers(tuple(handler_of(name) for name in _SIGNALS))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}", received[signal]
    finally:
        await server.stop(None)


def log_records(received: list[Any]) -> list[LogRecord]:
    """Return each log record of the requests."""
    return [
        record
        for request in received
        for group in request.resource_logs
        for scope in group.scope_logs
        for record in scope.log_records
    ]


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
