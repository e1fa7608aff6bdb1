"""A client span for each call, for programs that have the API of OpenTelemetry."""

from collections.abc import Callable

from opentelemetry.trace import (
    INVALID_SPAN,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
)

from spawnmesh_calls.contracts import path_waits


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
            self._span.set_attribute("rpc.response.status_code", status)
            if status != "OK":
                self._span.set_attribute("error.type", status)
                if status != "CANCELLED":
                    self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def client_spans(tracer: Tracer) -> Callable[[str, str], ClientSpan]:
    """Return a function that begins the span of a call, from the peer and the path of the RPC.

    A call that waits for something new begins no trace: most of them are polls in which
    nothing happens.
    """

    def begin(peer: str, path: str) -> ClientSpan:
        if path_waits(path) and not get_current_span().get_span_context().is_valid:
            return ClientSpan(INVALID_SPAN)
        name = path.lstrip("/")
        attributes = {"rpc.system.name": "grpc", "rpc.method": name, "peer.service": peer}
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
