"""One log event per RPC: who called what, how it ended, how long it took. Never a payload, never an error's text."""

import structlog
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_runtime.call import Call, ServedMethod, Step


def logged_calls(inner: Step, method: ServedMethod, service: str) -> Step:
    """A defect of ours is logged as an error with its traceback, everything else as information."""
    path = f"{method.service}/{method.name}"
    log = structlog.get_logger().bind()  # Put together here once, and not for every call.

    async def step(call: Call) -> object:
        start = monotonic_seconds()
        try:
            return await inner(call)
        finally:
            event: dict[str, object] = {
                "service": service,
                "method": path,
                "code": call.status,
                "duration_ms": round((monotonic_seconds() - start) * 1000, 3),
            }
            if call.refusal is not None:
                event["reason"] = call.refusal.reason.value
            if call.caller is not None:
                event["caller"] = call.caller.kind.value
            if call.defect is not None:
                log.error("rpc", exc_info=call.defect, **event)
            else:
                log.info("rpc", **event)

    return step
