"""Spans of OpenTelemetry's protocol, as readers of traces have them."""

from collections.abc import Iterable, Iterator
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2
from spawnmesh_core.spans import Span

_KIND_PREFIX = "SPAN_KIND_"
_STATUS_PREFIX = "STATUS_CODE_"


def spans_of(batches: Iterable[trace_pb2.ResourceSpans]) -> Iterator[Span]:
    """Yield the spans in their order. An enum's value that is not known is named by its number."""
    for batch in batches:
        service = str(_attributes(batch.resource.attributes).get("service.name", ""))
        for scope_spans in batch.scope_spans:
            for span in scope_spans.spans:
                yield _span(span, service)


def _span(span: trace_pb2.Span, service: str) -> Span:
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        name=span.name,
        service=service,
        start_unix_nanos=span.start_time_unix_nano,
        end_unix_nanos=span.end_time_unix_nano,
        kind=_value_name(trace_pb2.Span.SpanKind, span.kind).removeprefix(_KIND_PREFIX).lower(),
        status=_value_name(trace_pb2.Status.StatusCode, span.status.code)
        .removeprefix(_STATUS_PREFIX)
        .lower(),
        status_message=span.status.message,
        attributes=_attributes(span.attributes),
        links=[_link(link) for link in span.links],
        events=[_event(event) for event in span.events],
    )


def _value_name(enum: Any, number: int) -> str:
    value = enum.DESCRIPTOR.values_by_number.get(number)
    return str(number) if value is None else str(value.name)


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
