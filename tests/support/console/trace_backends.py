"""A backend of traces on loopback, which answers what a test wants."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby

from aiohttp import web
from opentelemetry.proto.trace.v1 import trace_pb2
from spawnmesh_core.spans import Span
from spawnmesh_runtime.otlp_json import traces_json

Answer = bytes | Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class LoopbackTraces:
    """The backend. `answers` are by trace id; any other trace is not found."""

    url: str
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """The path and the headers of each request."""

    def put(self, trace_id: str, spans: Iterable[Span]) -> None:
        """Answer with these spans, which become those of the trace."""
        self.answers[trace_id] = otlp_body(replace(span, trace_id=trace_id) for span in spans)


@asynccontextmanager
async def open_trace_backend() -> AsyncIterator[LoopbackTraces]:
    """Serve at `/api/v3/traces/{trace_id}`."""
    traces = LoopbackTraces("")

    async def answer(request: web.Request) -> web.StreamResponse:
        traces.requests.append(
            (request.path_qs, {name.lower(): value for name, value in request.headers.items()})
        )
        found = traces.answers.get(request.match_info["trace_id"])
        if found is None:
            return web.Response(status=404)
        if isinstance(found, bytes):
            return web.Response(body=found, content_type="application/json")
        return await found(request)

    app = web.Application()
    app.router.add_get("/api/v3/traces/{trace_id}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        traces.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/v3/traces/{{trace_id}}"
        yield traces
    finally:
        await runner.cleanup()


def otlp_body(spans: Iterable[Span]) -> bytes:
    """Return the spans as Jaeger answers. An id of any form becomes one of eight bytes."""
    batches = []
    for service, group in groupby(sorted(spans, key=lambda span: span.service), lambda span: span.service):
        batch = trace_pb2.ResourceSpans(scope_spans=[trace_pb2.ScopeSpans(spans=map(_otlp, group))])
        batch.resource.attributes.add(key="service.name").value.string_value = service
        batches.append(batch)
    return b'{"result":' + traces_json(trace_pb2.TracesData(resource_spans=batches)) + b"}"


def _otlp(span: Span) -> trace_pb2.Span:
    made = trace_pb2.Span(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=_id_of(span.span_id),
        parent_span_id=_id_of(span.parent_span_id) if span.parent_span_id else b"",
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Value(f"SPAN_KIND_{span.kind.upper()}"),
        start_time_unix_nano=span.start_unix_nanos,
        end_time_unix_nano=span.end_unix_nanos,
        status=trace_pb2.Status(
            code=trace_pb2.Status.StatusCode.Value(f"STATUS_CODE_{span.status.upper()}"),
            message=span.status_message,
        ),
    )
    for key, value in span.attributes.items():
        found = made.attributes.add(key=key).value
        if isinstance(value, int):
            found.int_value = value
        else:
            found.string_value = str(value)
    return made


def _id_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:8]
