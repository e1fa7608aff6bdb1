"""The file in which traces are recorded: the requests of exporters, each after its length."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

_LENGTH_BYTES = 4
_NANOS_PER_MS = 1_000_000
_KIND_PREFIX = "SPAN_KIND_"
_STATUS_PREFIX = "STATUS_CODE_"


@dataclass(frozen=True)
class Span:
    """One finished span. Ids are in hex, times are in nanoseconds since 1970. A root has the parent
    ''.
    """

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    service: str
    start_unix_nanos: int
    end_unix_nanos: int
    kind: str
    status: str
    status_message: str
    attributes: Mapping[str, object]
    links: Sequence[Mapping[str, object]]
    events: Sequence[Mapping[str, object]]

    @property
    def duration_ms(self) -> float:
        """The duration in milliseconds."""
        return (self.end_unix_nanos - self.start_unix_nanos) / _NANOS_PER_MS


def framed(request: bytes) -> bytes:
    """Return an ExportTraceServiceRequest in the form of the file."""
    return len(request).to_bytes(_LENGTH_BYTES, "big") + request


def load_spans(file: Path, trace_id: str) -> list[Span]:
    """Return the spans of the trace by start time, without incomplete records. Without a file there
    are none.
    """
    sought = bytes.fromhex(trace_id)
    # Most requests are of other traces: searching for the bytes first avoids parsing them.
    spans = [span for request in _requests(file) if sought in request for span in _spans_of(request)]
    return sorted((span for span in spans if span.trace_id == trace_id), key=by_start)


def load_all_spans(file: Path) -> list[Span]:
    """Return every span, in the order of arrival."""
    return [span for request in _requests(file) for span in _spans_of(request)]


def by_start(span: Span) -> tuple[int, str]:
    """Return the spans in order of their start."""
    return span.start_unix_nanos, span.span_id


def _requests(file: Path) -> Iterator[bytes]:
    data = file.read_bytes() if file.exists() else b""
    start = _LENGTH_BYTES
    while start <= len(data):
        end = start + int.from_bytes(data[start - _LENGTH_BYTES : start], "big")
        if end > len(data):
            return
        yield data[start:end]
        start = end + _LENGTH_BYTES


def _spans_of(request: bytes) -> Iterator[Span]:
    for resource_spans in ExportTraceServiceRequest.FromString(request).resource_spans:
        yield from _spans(resource_spans)


def _spans(resource_spans: trace_pb2.ResourceSpans) -> Iterator[Span]:
    service = str(_attributes(resource_spans.resource.attributes).get("service.name", ""))
    for scope_spans in resource_spans.scope_spans:
        for span in scope_spans.spans:
            yield Span(
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_span_id=span.parent_span_id.hex(),
                name=span.name,
                service=service,
                start_unix_nanos=span.start_time_unix_nano,
                end_unix_nanos=span.end_time_unix_nano,
                kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix(_KIND_PREFIX).lower(),
                status=trace_pb2.Status.StatusCode.Name(span.status.code)
                .removeprefix(_STATUS_PREFIX)
                .lower(),
                status_message=span.status.message,
                attributes=_attributes(span.attributes),
                links=[_link(link) for link in span.links],
                events=[_event(event) for event in span.events],
            )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, object]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _link(link: trace_pb2.Span.Link) -> dict[str, object]:
    return {
        "trace_id": link.trace_id.hex(),
        "span_id": link.span_id.hex(),
        "attributes": _attributes(link.attributes),
    }


def _event(event: trace_pb2.Span.Event) -> dict[str, object]:
    return {
        "name": event.name,
        "unix_nanos": event.time_unix_nano,
        "attributes": _attributes(event.attributes),
    }


def _value(value: AnyValue) -> object:
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case "bytes_value":
            return value.bytes_value.hex()
        case scalar:
            return getattr(value, scalar)
