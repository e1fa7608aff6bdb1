"""Write one log event and one measurement for each RPC: caller, method, status, duration.

They never contain a payload or the text of an error.
"""

from functools import partial

import structlog
from opentelemetry.metrics import Histogram, Meter
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_runtime.call import Call, ServedMethod, Step
from spawnmesh_runtime.defer import defer

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
    """Log each call after its answer is sent: an internal error with its traceback,
    others as info.
    """
    path = f"{method.service}/{method.name}"
    log = structlog.get_logger().bind()  # Bound once for each method, not for each call.

    async def step(call: Call) -> object:
        start = monotonic_seconds()
        try:
            return await inner(call)
        finally:
            defer(partial(report, call, monotonic_seconds() - start))

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
        if call.caller is not None:
            event["caller"] = call.caller.kind.value
        if call.defect is not None:
            log.error("rpc", exc_info=call.defect, **event)
        else:
            log.info("rpc", **event)

    return step
