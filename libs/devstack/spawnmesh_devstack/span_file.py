"""The file in which traces are recorded: the requests of exporters, each after its length."""

import mmap
from collections.abc import Iterator
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, TracesData
from spawnmesh_core.spans import Span, by_start
from spawnmesh_runtime.otlp_spans import spans_of

_LENGTH_BYTES = 4


def framed(request: bytes) -> bytes:
    """Return an ExportTraceServiceRequest in the form of the file."""
    return len(request).to_bytes(_LENGTH_BYTES, "big") + request


def load_trace(file: Path, trace_id: str) -> TracesData:
    """Return the spans of the trace in the order of arrival, without incomplete records. Without a
    file there are none.
    """
    sought, trace = bytes.fromhex(trace_id), TracesData()
    for request in _requests(file):
        # Most requests are of other traces: searching for the bytes first avoids parsing them.
        if sought in request:
            for batch in ExportTraceServiceRequest.FromString(request).resource_spans:
                scopes = [
                    ScopeSpans(scope=one.scope, spans=[span for span in one.spans if span.trace_id == sought])
                    for one in batch.scope_spans
                ]
                if any(one.spans for one in scopes):
                    trace.resource_spans.append(ResourceSpans(resource=batch.resource, scope_spans=scopes))
    return trace


def load_spans(file: Path, trace_id: str) -> list[Span]:
    """Return the spans of the trace by start time. See `load_trace`."""
    return sorted(spans_of(load_trace(file, trace_id).resource_spans), key=by_start)


def load_all_spans(file: Path) -> list[Span]:
    """Return every span, in the order of arrival."""
    requests = map(ExportTraceServiceRequest.FromString, _requests(file))
    return [span for request in requests for span in spans_of(request.resource_spans)]


def _requests(file: Path) -> Iterator[bytes]:
    if not file.exists() or not file.stat().st_size:
        return
    # The file of a mesh that ran for long is larger than the memory.
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = _LENGTH_BYTES
        while start <= len(data):
            end = start + int.from_bytes(data[start - _LENGTH_BYTES : start], "big")
            if end > len(data):
                return
            yield data[start:end]
            start = end + _LENGTH_BYTES
