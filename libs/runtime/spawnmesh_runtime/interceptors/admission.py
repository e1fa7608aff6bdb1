"""Admit a call before its request is read, so that a large request waits at its sender."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from spawnmesh_runtime.call import Call, Step

Admit = Callable[[str], AbstractAsyncContextManager[None]]
"""Admit a call of a tenant for the block."""


def admitted_calls(inner: Step, admit: Admit) -> Step:
    """Read and serve a call after `admit` admits the tenant of the caller."""

    async def step(call: Call) -> object:
        async with admit(call.caller.tenant_id if call.caller is not None else ""):
            return await inner(call)

    return step
