"""Admit a call before its request is read, so that a large request waits at its sender."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from spawnmesh_core.errors import invalid

from spawnmesh_runtime.call import END_OF_STREAM, Call, Step

Admit = Callable[[str], AbstractAsyncContextManager[None]]
"""Admit a call of a tenant for the block."""


def admitted_calls(inner: Step, admit: Admit) -> Step:
    """Read and serve the request of a unary call after `admit` admits the tenant of the caller."""

    async def step(call: Call) -> object:
        async with admit(call.caller.tenant_id if call.caller is not None else ""):
            # `read()` instead of the iterator of grpc.aio: the iterator is part of a reference
            # cycle that keeps the last message in memory until a garbage collection.
            call.request = await call.context.read()
            if call.request is END_OF_STREAM:
                raise invalid("request", "is missing: the call must send one message")
            return await inner(call)

    return step
