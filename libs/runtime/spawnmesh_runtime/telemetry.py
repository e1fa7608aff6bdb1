"""Internal spans, and the W3C `traceparent` that links spans across processes, queues
and restarts.
"""

import hashlib
import random
import re
from asyncio import CancelledError
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from time import time_ns

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)
from spawnmesh_calls.spans import traceparent_of
from spawnmesh_core.errors import MeshError

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_tracer: ContextVar[Tracer] = ContextVar("spawnmesh_tracer", default=NoOpTracer())  # noqa: B039
_next_span_id: ContextVar[int | None] = ContextVar("spawnmesh_next_span_id", default=None)

AttributeValue = str | int | float | bool


def use_tracer(tracer: Tracer) -> None:
    """Set the tracer of `traced` for this task and for tasks that it starts later."""
    _tracer.set(tracer)


@asynccontextmanager
async def traced(name: str, **attributes: AttributeValue) -> AsyncIterator[Span]:
    """Open an internal span for the block. `__` in the name of an attribute stands for `.`.

    An exception marks the span as an error with the reason of a MeshError, or with the type of the
    exception. Its text is not recorded, since it may contain content. Do not use it around a
    `yield`.
    """
    span = _tracer.get().start_span(name, attributes=_named(attributes))
    token = otel_context.attach(trace.set_span_in_context(span))
    try:
        yield span
    except CancelledError:
        span.set_attribute("error.type", "CANCELLED")  # As in the spans of RPCs, this is no error.
        raise
    except Exception as error:
        mark_failed(span, error.reason.value if isinstance(error, MeshError) else type(error).__name__)
        raise
    finally:
        otel_context.detach(token)
        span.end()


def mark_failed(span: Span, error_type: str) -> None:
    """Mark the span as an error of this type."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


def record_elapsed(name: str, elapsed: timedelta, **attributes: AttributeValue) -> None:
    """Record an internal span that ends now and has lasted so long. `__` as in `traced`."""
    end_time = time_ns()
    start_time = end_time - elapsed // timedelta(microseconds=1) * 1000
    span = _tracer.get().start_span(name, attributes=_named(attributes), start_time=start_time)
    span.end(end_time)


def derived_traceparent(traceparent: str, key: str) -> str:
    """Return the `traceparent` of the one span that `key` has in this trace; empty without a trace.

    Its id follows from the key. So the span can be the parent of others in any process before
    `record_derived` records it.
    """
    remote = _remote_span(traceparent)
    if remote is None:
        return ""
    return f"00-{remote.trace_id:032x}-{_derived_id(key):016x}-{int(remote.trace_flags):02x}"


def record_derived(
    traceparent: str,
    key: str,
    name: str,
    times: tuple[datetime, datetime],
    attributes: Mapping[str, AttributeValue],
    *,
    error_type: str = "",
) -> None:
    """Record the span of `derived_traceparent`, a child of `traceparent`, from its start to
    its end.

    With an `error_type` it is an error. Recorded twice, it is the same span twice.
    """
    start, end = (int(time.timestamp() * 1_000_000) * 1000 for time in times)
    token = _next_span_id.set(_derived_id(key))
    try:
        parent = parent_context(traceparent)
        span = _tracer.get().start_span(name, parent, attributes=attributes, start_time=start)
    finally:
        _next_span_id.reset(token)
    if error_type:
        mark_failed(span, error_type)
    span.end(max(start, end))


def unrecorded_traceparent() -> str:
    """Return the `traceparent` of a new trace of which nothing is recorded."""
    return f"00-{random.getrandbits(128) | 1:032x}-{random.getrandbits(64) | 1:016x}-00"


def next_span_id() -> int | None:
    """Return the id that the span being started must have; None if it may have any."""
    return _next_span_id.get()


def _derived_id(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") or 1


def _named(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {key.replace("__", "."): value for key, value in attributes.items()}


def current_traceparent() -> str:
    """Return the `traceparent` of the current span, to store with deferred work; empty
    without a trace.
    """
    return traceparent_of(trace.get_current_span())


def parent_context(traceparent: str) -> Context:
    """Return a context with the remote span as its current span.

    The context is empty if the `traceparent` is malformed.
    """
    remote = _remote_span(traceparent)
    return trace.set_span_in_context(NonRecordingSpan(remote), Context()) if remote else Context()


def links_to(traceparent: str) -> tuple[Link, ...]:
    """Return a link to the remote span; none if the `traceparent` is malformed."""
    remote = _remote_span(traceparent)
    return (Link(remote),) if remote else ()


def _remote_span(traceparent: str) -> SpanContext | None:
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or match.group(1) == "ff":
        return None
    remote = SpanContext(
        trace_id=int(match.group(2), 16),
        span_id=int(match.group(3), 16),
        is_remote=True,
        trace_flags=TraceFlags(int(match.group(4), 16)),
    )
    return remote if remote.is_valid else None


@contextmanager
def continue_trace(traceparent: str) -> Iterator[None]:
    """Continue the stored trace in the block.

    An empty or malformed `traceparent` starts a new trace.
    """
    token = otel_context.attach(parent_context(traceparent))
    try:
        yield
    finally:
        otel_context.detach(token)


def trace_id_of(traceparent: str) -> str:
    """Return the trace id as 32 hex digits; empty if the `traceparent` is malformed."""
    context = trace.get_current_span(parent_context(traceparent)).get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


def current_trace_id() -> str:
    """Return the id of the current trace as 32 hex digits; empty outside of a trace."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""
