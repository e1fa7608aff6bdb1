"""Create one server span for each RPC, a child of the span of the caller if it is trusted.

Anyone can send the id of a foreign trace, or a flag that says "do not record". The span of another
caller starts a trace that is linked to the trace of the caller.
"""

from collections.abc import Collection
from functools import partial
from time import time_ns

import grpc
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from spawnmesh_runtime.call import Call, ServedMethod, Step
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.defer import defer
from spawnmesh_runtime.telemetry import AttributeValue, links_to, parent_context, use_tracer

_SERVER_FAULTS = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
_OF_THE_MESH = frozenset({CallerKind.SERVICE, CallerKind.RUN, CallerKind.RUNNER})
"""The kinds of caller whose tokens the mesh itself signs."""

_NO_LINKS: tuple[Link, ...] = ()

CODES: dict[str, int] = {code.name: code.value[0] for code in grpc.StatusCode}


def _is_of_the_mesh(caller: Caller) -> bool:
    """Return whether the caller is a part of the mesh. The runner of some tenants is not."""
    return caller.kind in _OF_THE_MESH and not (caller.tenants or caller.agents)


def traced_calls(
    inner: Step, method: ServedMethod, tracer: Tracer, trusted_issuers: Collection[str] = ()
) -> Step:
    """Open the span before the other steps.

    It ends with the call, also for streams, and is exported after the answer is sent. Callers with
    tokens of the mesh and of `trusted_issuers` are trusted. A call above the rates of its tenant
    has no span.
    """
    name = f"{method.service}/{method.name}"
    attributes = {"rpc.system": "grpc", "rpc.service": method.service, "rpc.method": method.name}
    trusted = frozenset(trusted_issuers)

    async def step(call: Call) -> object:
        if call.rate_refusal is not None:
            return await inner(call)
        use_tracer(tracer)
        sent = "".join(call.headers("traceparent"))  # gRPC passes on one of several.
        caller = call.caller
        if caller is not None and (_is_of_the_mesh(caller) or caller.issuer in trusted):
            parent, links = parent_context(sent), _NO_LINKS
        else:
            parent, links = Context(), links_to(sent)
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
    attributes: dict[str, AttributeValue] = {"rpc.grpc.status_code": CODES[call.status]}
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
