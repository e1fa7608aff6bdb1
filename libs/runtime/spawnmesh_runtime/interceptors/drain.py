"""Knows when the running calls are done, after their answers are sent."""

import asyncio

from spawnmesh_runtime.afterwards import afterwards
from spawnmesh_runtime.call import Call, Step


class Drain:
    """How many calls are running."""

    def __init__(self) -> None:
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Returns when no call is running."""
        await self._idle.wait()

    def counted_calls(self, inner: Step) -> Step:
        """Outermost of all: a call runs until its span is closed and its log event written."""

        async def step(call: Call) -> object:
            self._running += 1
            self._idle.clear()
            try:
                return await inner(call)
            finally:
                afterwards(self._ended)

        return step

    def _ended(self) -> None:
        self._running -= 1
        if self._running == 0:
            self._idle.set()
