"""Count the running calls, to detect when all of them have ended and their answers are sent."""

import asyncio

from spawnmesh_runtime.call import Call, Step
from spawnmesh_runtime.defer import defer


class Drain:
    """The number of running calls."""

    def __init__(self) -> None:
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is running."""
        await self._idle.wait()

    def counted_calls(self, inner: Step) -> Step:
        """Count calls.

        It is the outermost step: a call runs until its span and its log event are written.
        """

        async def step(call: Call) -> object:
            self._running += 1
            self._idle.clear()
            try:
                return await inner(call)
            finally:
                defer(self._ended)

        return step

    def _ended(self) -> None:
        self._running -= 1
        if self._running == 0:
            self._idle.set()
