"""The file of a span journal: what a span, a slot and the header look like in it.

The file begins with a header: the time at which its process was last known to be alive, and the
resource of the process. Slots of equal size follow. A slot holds one span, or is free.

The file is mapped into memory. A process may be killed between any two bytes that it writes, so the
id of a span, which makes its slot taken, is written last.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from mmap import mmap
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

SLOT_BYTES = 1024
SLOT_COUNT = 4096
"""Twice as many spans as wait for the exporter before it drops some."""
PROCESS_LOST = "PROCESS_LOST"
"""The `error.type` of a span that was open when its process died."""
ALIVE_OFFSET = 8
"""The place of `encode_time` in the file."""

_HEADER_BYTES = 4096
FILE_BYTES = _HEADER_BYTES + SLOT_COUNT * SLOT_BYTES
_FREE = bytes(8)
_MAX_NAME_BYTES = 256
_HEADER = struct.Struct("<8sqH")  # Magic, time when last alive, bytes of the resource.
_TIME = struct.Struct("<q")
_MAGIC = b"spans-1\n"
# Ids of span, trace and parent; start, end (0: still open); kind, status; bytes of name and of
# attributes.
_SPAN = struct.Struct("<8s16s8sqqBBHH")
_ID_BYTES = 8
_BODY = struct.Struct("<16s8sqqBBHH")  # The same without the id.
_END = struct.Struct("<qBB")
_END_OFFSET = 40
_STATUS = {code.value: code for code in StatusCode}
_KIND = {kind.value: kind for kind in SpanKind}
_SCOPE = InstrumentationScope("spawnmesh")


def encode_time(alive_time: int) -> bytes:
    """Return the part of the header that changes."""
    return _TIME.pack(alive_time)


def encode_header(resource: Resource, alive_time: int) -> bytes:
    """Return the header. A resource that is too long loses all but the service's own attributes."""
    text = _json(resource.attributes)
    if len(text) > _HEADER_BYTES - _HEADER.size:
        own = {key: value for key, value in resource.attributes.items() if key.startswith("service.")}
        text = _json(own)
    return _HEADER.pack(_MAGIC, alive_time, len(text)) + text


def write_span(file: mmap, slot: int, span: ReadableSpan) -> None:
    """Write a span that is open or has ended into the slot.

    Attributes that do not fit are left out. So are those of an RPC, whose name says the same: they
    would be half of the cost.
    """
    context, parent, attributes = span.context, span.parent, span.attributes or {}
    name = span.name.encode()[:_MAX_NAME_BYTES]
    text = b"" if "rpc.method" in attributes else _json(attributes)
    if len(text) > SLOT_BYTES - _SPAN.size - len(name):
        text = b""
    body = _BODY.pack(
        context.trace_id.to_bytes(16, "big"),
        parent.span_id.to_bytes(8, "big") if parent else _FREE,
        span.start_time or 0,
        span.end_time or 0,
        span.kind.value,
        span.status.status_code.value,
        len(name),
        len(text),
    )
    free_slot(file, slot)
    start = _slot_offset(slot)
    data = body + name + text
    file[start + _ID_BYTES : start + _ID_BYTES + len(data)] = data
    file[start : start + _ID_BYTES] = context.span_id.to_bytes(8, "big")


def write_end(file: mmap, slot: int, span: ReadableSpan) -> None:
    """Write the end of the span that is in the slot."""
    if "rpc.method" not in (span.attributes or {}):
        write_span(file, slot, span)  # It may have new attributes.
        return
    start = _slot_offset(slot) + _END_OFFSET
    end = _END.pack(span.end_time or 0, span.kind.value, span.status.status_code.value)
    file[start : start + len(end)] = end


def free_slot(file: mmap, slot: int) -> None:
    """Remove the span from the slot."""
    start = _slot_offset(slot)
    file[start : start + _ID_BYTES] = _FREE


def _slot_offset(slot: int) -> int:
    return _HEADER_BYTES + slot * SLOT_BYTES


def decode_spans(data: bytes) -> Iterator[ReadableSpan]:
    """Yield the spans of a journal whose process has died.

    A span that was open has an error, and ends when the process was last known to be alive. Raises
    ValueError if the data is no journal.
    """
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise ValueError("not a journal of spans")
    _, alive_time, size = _HEADER.unpack_from(data)
    resource = Resource(json.loads(data[_HEADER.size : _HEADER.size + size]))
    for offset in range(_HEADER_BYTES, len(data) - _SPAN.size + 1, SLOT_BYTES):
        if data[offset : offset + _ID_BYTES] != _FREE:
            yield _decode(data[offset : offset + SLOT_BYTES], resource, alive_time)


def _decode(slot: bytes, resource: Resource, alive_time: int) -> ReadableSpan:
    span_id, trace_id, parent_id, start, end, kind, code, name_size, text_size = _SPAN.unpack_from(slot)
    text_start = _SPAN.size + name_size
    text = slot[text_start : text_start + text_size]
    attributes: dict[str, Any] = json.loads(text) if text else {}
    status = Status(_STATUS[code])
    if not end:
        end = max(start, alive_time)
        attributes["error.type"] = PROCESS_LOST
        status = Status(StatusCode.ERROR, "the process ended before this span")
    return ReadableSpan(
        name=slot[_SPAN.size : text_start].decode(errors="replace"),
        context=_context(trace_id, span_id),
        parent=None if parent_id == _FREE else _context(trace_id, parent_id),
        resource=resource,
        attributes=attributes,
        kind=_KIND[kind],
        status=status,
        start_time=start,
        end_time=end,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: bytes, span_id: bytes) -> SpanContext:
    return SpanContext(
        int.from_bytes(trace_id, "big"),
        int.from_bytes(span_id, "big"),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _json(attributes: Mapping[str, Any]) -> bytes:
    return _encode(dict(attributes)).encode()
