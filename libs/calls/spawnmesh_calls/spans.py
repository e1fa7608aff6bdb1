"""A client span for each call, for programs that have the API of OpenTelemetry."""

from collections.abc import Callable

import grpc
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

CODES: dict[str, int] = {code.name: code.value[0] for code in grpc.StatusCode}


class ClientSpan:
    """The span of one call. Its headers make the span of the server a child of it."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the header `traceparent`; none without a trace."""
        traceparent = traceparent_of(self._span)
        return (("traceparent", traceparent),) if traceparent else ()

    def end(self, status: str) -> None:
        """End the span with the name of a status code of gRPC."""
        if self._span.is_recording():
            self._span.set_attribute("rpc.grpc.status_code", CODES[status])
            if status != "OK":
                self._span.set_attribute("error.type", status)
                if status != "CANCELLED":
                    self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def client_spans(tracer: Tracer) -> Callable[[str, str], ClientSpan]:
    """Return a function that begins the span of a call, from the peer and the path of the RPC."""

    def begin(peer: str, path: str) -> ClientSpan:
        name = path.lstrip("/")
        service, _, rpc = name.rpartition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": rpc, "peer.service": peer}
        return ClientSpan(tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes))

    return begin


def traceparent_of(span: Span) -> str:
    """Return the `traceparent` that makes a remote span a child of this one; empty
    without a trace.
    """
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
