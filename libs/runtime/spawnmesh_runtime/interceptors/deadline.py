"""Cancel a call at its deadline, and pass the remaining time to the calls that it makes."""

import asyncio
from contextvars import Context, ContextVar, copy_context
from math import inf

from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call, Step

_deadline: ContextVar[float | None] = ContextVar("spawnmesh_deadline", default=None)


def bounded_calls(inner: Step, max_seconds: float = inf) -> Step:
    """Refuse a call whose deadline has passed, and cancel a call when its deadline passes.

    A call without a deadline, or with a later one, is cancelled after `max_seconds`.
    """

    async def step(call: Call) -> object:
        remaining: float | None = call.context.time_remaining()
        if remaining is None:
            _deadline.set(None)
        elif remaining <= 0:
            raise MeshError(Reason.DEADLINE_EXCEEDED, "the deadline had passed before work began")
        else:
            _deadline.set(monotonic_seconds() + remaining)
        limit = max_seconds if remaining is None else min(remaining, max_seconds)
        async with asyncio.timeout(None if limit == inf else limit):
            return await inner(call)

    return step


def remaining_seconds() -> float | None:
    """Return the seconds until the deadline of the call being served; None without a deadline."""
    deadline = _deadline.get()
    return None if deadline is None else deadline - monotonic_seconds()


def context_without_deadline() -> Context:
    """Return a copy of the context for work that goes on after the call being served."""
    context = copy_context()
    context.run(_deadline.set, None)
    return context
