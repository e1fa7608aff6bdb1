"""Turns whatever a call raises into a gRPC status with `google.rpc` details, by one rule for all services."""

import asyncio
from collections.abc import Callable, Sequence

import grpc
import grpc.aio
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call, Step
from spawnmesh_runtime.telemetry import current_trace_id
from spawnmesh_runtime.wire_errors import status_metadata

Translate = Callable[[BaseException], MeshError | None]
"""Gives the refusal for a driver's exception, or None for one it does not know."""


def typed_errors(inner: Step, service: str, translate: Sequence[Translate]) -> Step:
    """Refusals keep their reason and facts; a driver's errors go through `translate`; a TimeoutError is DEADLINE_EXCEEDED.

    Anything else is INTERNAL with a fixed text and the trace id. Cancellation passes.
    """

    async def step(call: Call) -> object:
        try:
            return await inner(call)
        except asyncio.CancelledError:
            call.status = "DEADLINE_EXCEEDED" if time_is_over(call) else "CANCELLED"
            raise
        except grpc.aio.AbortError:
            call.status = call.context.code().name
            raise
        except Exception as error:
            if call.context.cancelled():  # What failed is writing to a caller that is gone; there is nobody to tell.
                call.status = "CANCELLED"
                raise asyncio.CancelledError from error
            refusal = _refusal(_one_of(error), translate)
            if refusal.reason is Reason.INTERNAL:
                call.defect = error
                refusal = _internal()
            # Its frames hold what the call has in memory, and the call holds it: that would stay until such circles are looked for. Nor is the
            # request kept for as long as the refusal is on its way.
            refusal.__traceback__ = refusal.__context__ = refusal.__cause__ = None
            call.request = None
            call.refusal, call.status = refusal, refusal.status.value
        return await call.context.abort(
            grpc.StatusCode[call.status], call.refusal.message, status_metadata(call.refusal, f"{service}.spawnmesh")
        )

    return step


def time_is_over(call: Call) -> bool:
    """Whether the call has a deadline that has passed."""
    remaining: float | None = call.context.time_remaining()
    return remaining is not None and remaining <= 0


def _one_of(error: Exception) -> BaseException:
    """Out of a group, a refusal if there is one, else the first error: tasks that ran side by side raise groups."""
    if not isinstance(error, ExceptionGroup):
        return error
    members = [_one_of(member) for member in error.exceptions]
    return next((member for member in members if isinstance(member, MeshError)), members[0])


def _refusal(error: BaseException, translate: Sequence[Translate]) -> MeshError:
    if isinstance(error, MeshError):
        return error
    for known in translate:
        refusal = known(error)
        if refusal is not None:
            return refusal
    if isinstance(error, TimeoutError):
        return MeshError(Reason.DEADLINE_EXCEEDED, "the call took longer than its deadline or a limit within it")
    return _internal()


def _internal() -> MeshError:
    trace_id = current_trace_id()
    return MeshError(Reason.INTERNAL, f"internal error; trace {trace_id or 'unknown'}", facts={"trace_id": trace_id})
