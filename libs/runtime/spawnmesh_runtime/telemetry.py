"""Spans of our own and the W3C `traceparent` that ties them together across processes, queues and restarts."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, NoOpTracer, Span, SpanContext, Status, StatusCode, TraceFlags, Tracer

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_tracer: ContextVar[Tracer] = ContextVar("spawnmesh_tracer", default=NoOpTracer())  # noqa: B039 - it has no state

AttributeValue = str | int | float | bool


def use_tracer(tracer: Tracer) -> None:
    """Makes `traced` in this task, and in tasks started from it, use this tracer."""
    _tracer.set(tracer)


@asynccontextmanager
async def traced(name: str, **attributes: AttributeValue) -> AsyncIterator[Span]:
    """An internal span around the block, current inside it. `__` in an attribute's name stands for `.`.

    An exception marks it as an error by its type; the text, which could hold content, is not recorded. Not for blocks that yield.
    """
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    span = _tracer.get().start_span(name, attributes=named)
    token = otel_context.attach(trace.set_span_in_context(span))
    try:
        yield span
    except Exception as error:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
        raise
    finally:
        otel_context.detach(token)
        span.end()


def traceparent_of(span: Span) -> str:
    """The `traceparent` that makes a span elsewhere a child of this one; empty for a span without a trace."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def current_traceparent() -> str:
    """The `traceparent` of the current span, to be stored with work that is done later; empty outside of a trace."""
    return traceparent_of(trace.get_current_span())


def parent_context(traceparent: str) -> Context:
    """A context whose current span is the remote one; an empty one for anything but a well-formed `traceparent`."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or match.group(1) == "ff":
        return Context()
    remote = SpanContext(
        trace_id=int(match.group(2), 16),
        span_id=int(match.group(3), 16),
        is_remote=True,
        trace_flags=TraceFlags(int(match.group(4), 16)),
    )
    return trace.set_span_in_context(NonRecordingSpan(remote), Context()) if remote.is_valid else Context()


@contextmanager
def continue_trace(traceparent: str) -> Iterator[None]:
    """Spans in the block belong to the stored trace; an empty or malformed `traceparent` starts a new one."""
    token = otel_context.attach(parent_context(traceparent))
    try:
        yield
    finally:
        otel_context.detach(token)


def trace_id_of(traceparent: str) -> str:
    """The trace id, 32 hex digits; empty for anything but a well-formed `traceparent`."""
    context = trace.get_current_span(parent_context(traceparent)).get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


def current_trace_id() -> str:
    """The current trace's id, 32 hex digits; empty outside of a trace."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""
