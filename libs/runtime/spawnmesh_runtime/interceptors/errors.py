"""Turn the exception of a call into a gRPC status with `google.rpc` details."""

import asyncio
from collections.abc import Callable, Sequence

import grpc
import grpc.aio
from spawnmesh_calls.wire_errors import shortened, status_metadata
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call, Step
from spawnmesh_runtime.telemetry import current_trace_id

Translate = Callable[[BaseException], MeshError | None]
"""Return the refusal for an exception of a driver, or None for another exception."""


def typed_errors(inner: Step, service: str, translate: Sequence[Translate]) -> Step:
    """Turn exceptions into statuses.

    - A MeshError keeps its reason and facts.
    - `translate` turns the exceptions of drivers into refusals.
    - A TimeoutError becomes DEADLINE_EXCEEDED.
    - Any other exception becomes INTERNAL with a fixed text and the trace id.
    - A cancellation passes.
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
            if call.context.cancelled():  # Writing to a caller that is gone failed.
                call.status = "CANCELLED"
                raise asyncio.CancelledError from error
            refusal = _refusal(_first_refusal(error), translate)
            if refusal.reason is Reason.INTERNAL:
                call.defect = error
                refusal = _internal()
            # The frames of the traceback reference the data of the call, and the call references
            # the refusal. Without this, the memory stays until a garbage collection breaks the
            # cycle. The request is not needed while the refusal is sent.
            refusal.__traceback__ = refusal.__context__ = refusal.__cause__ = None
            call.request = None
            call.refusal, call.status = refusal, refusal.status.value
        return await call.context.abort(
            grpc.StatusCode[call.status],
            shortened(call.refusal.message),
            status_metadata(call.refusal, f"{service}.spawnmesh"),
        )

    return step


def time_is_over(call: Call) -> bool:
    """Return whether the call has a deadline that has passed."""
    remaining: float | None = call.context.time_remaining()
    return remaining is not None and remaining <= 0


def _first_refusal(error: Exception) -> BaseException:
    """Return a refusal of an exception group if it has one, else its first error."""
    if not isinstance(error, ExceptionGroup):
        return error
    members = [_first_refusal(member) for member in error.exceptions]
    return next((member for member in members if isinstance(member, MeshError)), members[0])


def _refusal(error: BaseException, translate: Sequence[Translate]) -> MeshError:
    if isinstance(error, MeshError):
        return error
    for known in translate:
        refusal = known(error)
        if refusal is not None:
            return refusal
    if isinstance(error, TimeoutError):
        return MeshError(
            Reason.DEADLINE_EXCEEDED, "the call took longer than its deadline or a limit within it"
        )
    return _internal()


def _internal() -> MeshError:
    trace_id = current_trace_id()
    return MeshError(
        Reason.INTERNAL, f"internal error; trace {trace_id or 'unknown'}", facts={"trace_id": trace_id}
    )
