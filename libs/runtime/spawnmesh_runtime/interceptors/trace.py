"""Create one server span for each RPC, a child of the span of the caller if it is trusted.

Anyone can send the id of a foreign trace, or a flag that says "do not record". The span of another
caller starts a trace that is linked to the trace of the caller. A harness may continue the trace of
the session that it works on, and not choose whether that is recorded.
"""

from collections.abc import Collection
from functools import partial
from time import time_ns

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from spawnmesh_runtime.call import Call, ServedMethod, Step
from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.defer import defer
from spawnmesh_runtime.telemetry import (
    AttributeValue,
    continue_trace,
    links_to,
    parent_context,
    unrecorded_traceparent,
    use_tracer,
)

_SERVER_FAULTS = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
# A `traceparent` is version, trace id, span id and flags.
_TRACE_ID, _FLAGS = slice(3, 35), slice(53, None)


def _trusted_traceparent(sent: str, caller: Caller | None, issuers: Collection[str]) -> str:
    """Return the part of what the caller sent that its span continues; "" for none."""
    if caller is None:
        return ""
    if caller.is_of_the_mesh or caller.issuer in issuers:
        return sent
    own = caller.traceparent
    return sent[: _FLAGS.start] + own[_FLAGS] if own and sent[_TRACE_ID] == own[_TRACE_ID] else ""


def traced_calls(
    inner: Step, method: ServedMethod, tracer: Tracer, trusted_issuers: Collection[str] = ()
) -> Step:
    """Open the span before the other steps.

    It ends with the call, also for streams, and is exported after the answer is sent. Callers with
    tokens of the mesh and of `trusted_issuers` are trusted. A call that is not observed has no
    span. A call that waits for something new starts no trace: it has a trace id for errors and
    logs, and nothing is recorded.
    """
    name = f"{method.service}/{method.name}"
    attributes = {"rpc.system.name": "grpc", "rpc.method": name}
    trusted = frozenset(trusted_issuers)

    async def step(call: Call) -> object:
        if not call.is_observed:
            return await inner(call)
        use_tracer(tracer)
        sent = "".join(call.headers("traceparent"))  # gRPC passes on one of several.
        continued = _trusted_traceparent(sent, call.caller, trusted)
        if method.policy.waits and not continued:
            with continue_trace(unrecorded_traceparent()):
                return await inner(call)
        parent = parent_context(continued) if continued else Context()
        links = () if continued else links_to(sent)
        span = tracer.start_span(
            name,
            context=parent,
            kind=SpanKind.SERVER,
            attributes=attributes,
            links=links,
            start_time=call.start_time_ns,
        )
        token = otel_context.attach(trace.set_span_in_context(span, parent))
        try:
            return await inner(call)
        finally:
            otel_context.detach(token)
            if span.is_recording():
                defer(partial(_end, span, call, time_ns()))

    return step


def _end(span: Span, call: Call, end_time: int) -> None:
    attributes: dict[str, AttributeValue] = {"rpc.response.status_code": call.status}
    if call.caller is not None:
        attributes["spawnmesh.caller.kind"] = call.caller.kind.value
        if call.caller.tenant_id:
            attributes["spawnmesh.tenant.id"] = call.caller.tenant_id
        if call.caller.run_id:
            attributes["spawnmesh.run.id"] = call.caller.run_id
    if call.status != "OK":
        attributes["error.type"] = call.refusal.reason.value if call.refusal else call.status
    span.set_attributes(attributes)  # One call: each call costs as much as three attributes.
    if call.status in _SERVER_FAULTS:
        span.set_status(Status(StatusCode.ERROR))
    span.end(end_time)
