"""Requests that may be large stay with their senders until it is the tenant's turn."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from spawnmesh_core.errors import invalid

from spawnmesh_runtime.call import NO_MORE, Call, Step

Turn = Callable[[str], AbstractAsyncContextManager[None]]
"""Gives a tenant's call its turn for a block."""


def received_in_turn(inner: Step, turn: Turn) -> Step:
    """Reads the one message of a call of which the transport has read none, and works on it, in the turn of the caller's tenant."""

    async def step(call: Call) -> object:
        async with turn(call.caller.tenant_id if call.caller is not None else ""):
            # Not by the transport's iterator: it holds itself, and the last message with it, until such circles are looked for.
            call.request = await call.context.read()
            if call.request is NO_MORE:
                raise invalid("request", "is one message, and none came")
            return await inner(call)

    return step
