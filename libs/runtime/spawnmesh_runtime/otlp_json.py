"""Traces as JSON: the form of OTLP, in which ids are hex, and the answers of backends.

Jaeger has the trace below `result`. Tempo has it below `trace`, with ids in base64 as protobuf
writes bytes, and `status` PARTIAL if it left spans out.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import orjson
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

_BATCHES = "resourceSpans"
_IDS = ("traceId", "spanId", "parentSpanId")
_HEX_DIGITS = (32, 16)
_MAX_DEPTH = 30


def traces_json(traces: TracesData) -> bytes:
    """Return the traces as OTLP JSON."""
    document = MessageToDict(traces, use_integers_for_enums=True)
    for span in _spans_in(document):
        for holder in (span, *span.get("links", ())):
            for name in _IDS:
                if name in holder:
                    holder[name] = b64decode(holder[name]).hex()
    return orjson.dumps(document)


def traces_of_json(body: bytes) -> tuple[TracesData, bool]:
    """Return the traces of OTLP JSON or of a backend's answer, without links and events, and
    whether they are all that was recorded.

    Raises ValueError for anything else.
    """
    try:
        document = orjson.loads(body)
        content = next((document[name] for name in ("result", "trace") if name in document), None)
        if content is None:
            content = {_BATCHES: document[_BATCHES]}
        for span in _spans_in(content):
            span.pop("links", None)
            span.pop("events", None)
            for name in _IDS:
                if span.get(name):
                    span[name] = _base64(span[name])
        traces = ParseDict(content, TracesData(), ignore_unknown_fields=True, max_recursion_depth=_MAX_DEPTH)
    except (ValueError, TypeError, KeyError, AttributeError, ParseError) as error:
        raise ValueError(f"this is no trace as OTLP JSON: {type(error).__name__}") from error
    return traces, document.get("status") != "PARTIAL"


def _spans_in(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for batch in document.get(_BATCHES) or ():
        for scope_spans in batch.get("scopeSpans") or ():
            yield from scope_spans.get("spans") or ()


def _base64(one_id: str) -> str:
    if len(one_id) in _HEX_DIGITS:
        return b64encode(bytes.fromhex(one_id)).decode()
    b64decode(one_id, validate=True)
    return one_id
