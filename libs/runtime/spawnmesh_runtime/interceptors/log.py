"""One log event and one measurement per RPC: who called what, how it ended, how long it took. Never a payload, never an error's text."""

from functools import partial

import structlog
from opentelemetry.metrics import Histogram, Meter
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_runtime.afterwards import afterwards
from spawnmesh_runtime.call import Call, ServedMethod, Step

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


def call_durations(meter: Meter) -> Histogram:
    """How long calls took, for `logged_calls`; named as the OpenTelemetry conventions have it."""
    return meter.create_histogram(
        "rpc.server.call.duration",
        unit="s",
        description="How long RPCs took, by method and by how they ended; error.type is the reason of a refusal.",
        explicit_bucket_boundaries_advisory=_SECONDS,
    )


def logged_calls(inner: Step, method: ServedMethod, service: str, durations: Histogram) -> Step:
    """A defect of ours is logged as an error with its traceback, everything else as information; both when the caller has been answered."""
    path = f"{method.service}/{method.name}"
    log = structlog.get_logger().bind()  # Put together here once, and not for every call.

    async def step(call: Call) -> object:
        start = monotonic_seconds()
        try:
            return await inner(call)
        finally:
            afterwards(partial(tell, call, monotonic_seconds() - start))

    def tell(call: Call, seconds: float) -> None:
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
