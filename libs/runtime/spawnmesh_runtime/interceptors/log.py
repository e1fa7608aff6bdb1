"""Write one log event and one measurement for each RPC: caller, method, status, duration.

They never contain a payload or the text of an error. The log event of a call that is an event of
the audit log has `audit`, and says who called for which resource.
"""

from collections.abc import Callable
from functools import partial

import structlog
from opentelemetry.metrics import Histogram, Meter
from spawnmesh_core.audit_event import AuditEvent
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call, ServedMethod, Step
from spawnmesh_runtime.defer import defer
from spawnmesh_runtime.interceptors.observe import DeniedCalls

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


def call_durations(meter: Meter) -> Histogram:
    """Create the histogram of call durations, with the name of the OpenTelemetry conventions."""
    return meter.create_histogram(
        "rpc.server.call.duration",
        unit="s",
        description="Duration of RPCs by method and status; error.type is the reason of a refusal.",
        explicit_bucket_boundaries_advisory=_SECONDS,
    )


def logged_calls(inner: Step, method: ServedMethod, service: str, durations: Histogram) -> Step:
    """Log each call of the method after its answer is sent: an internal error with its traceback,
    others as info. A call that is refused as RATE_LIMITED, that is not observed, or that is one of
    many of an RPC with frequent calls and was not refused, is measured only.
    """
    report = _reporter(
        f"{method.service}/{method.name}", service, durations, is_frequent=method.policy.is_frequent
    )

    async def step(call: Call) -> object:
        try:
            return await inner(call)
        finally:
            defer(partial(report, call, monotonic_seconds() - call.start_seconds))

    return step


def logged_refusals(inner: Step, path: str, service: str, durations: Histogram, denied: DeniedCalls) -> Step:
    """Measure and log calls as `logged_calls` does, but only those that are refused.

    They need no token, so their log events are in the budget of the `denied` calls.
    """
    report = _reporter(path, service, durations)

    async def step(call: Call) -> object:
        try:
            return await inner(call)
        finally:
            if call.refusal is not None:
                call.is_observed = denied.take()
                defer(partial(report, call, monotonic_seconds() - call.start_seconds))

    return step


def _audited(audited: AuditEvent) -> dict[str, object]:
    """Return the fields that make a log event one of the audit log."""
    return {
        "audit": True,
        "subject": audited.subject,
        "token": audited.token_id,
        "resources": audited.resources,
        "peer": audited.peer,
    }


def _reporter(
    path: str, service: str, durations: Histogram, *, is_frequent: bool = False
) -> Callable[[Call, float], None]:
    log = structlog.get_logger().bind()  # Bound once for each method, not for each call.

    def report(call: Call, seconds: float) -> None:
        measured: dict[str, str] = {
            "rpc.system.name": "grpc",
            "rpc.method": path,
            "rpc.response.status_code": call.status,
        }
        event: dict[str, object] = {
            "service": service,
            "method": path,
            "code": call.status,
            "duration_ms": round(seconds * 1000, 3),
        }
        if call.refusal is not None:
            measured["error.type"] = event["reason"] = call.refusal.reason.value
        durations.record(seconds, measured)
        is_limited = call.refusal is not None and call.refusal.reason is Reason.RATE_LIMITED
        if call.defect is None and (is_limited or not call.is_observed):
            return  # One event says it for many calls: a flood must not become one of events.
        if is_frequent and call.status == "OK":
            return
        if call.caller is not None:
            event["caller"] = call.caller.kind.value
        if call.audit_event is not None:
            event |= _audited(call.audit_event)
        if call.defect is not None:
            log.error("rpc", exc_info=call.defect, **event)
        else:
            log.info("rpc", **event)

    return report
