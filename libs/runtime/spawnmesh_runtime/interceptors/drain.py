"""Refuses new calls while the process is shutting down, and knows when the running ones are done."""

import asyncio

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call, Step


class Drain:
    """How many calls are running, and whether new ones are still let in."""

    def __init__(self) -> None:
        self._running = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """From now on new calls are refused with DRAINING."""
        self._draining = True

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
                self._running -= 1
                if self._running == 0:
                    self._idle.set()

        return step

    def admitted_calls(self, inner: Step) -> Step:
        """Lets calls in until `begin`."""

        async def step(call: Call) -> object:
            if self._draining:
                raise MeshError(
                    Reason.DRAINING, "this process is shutting down; another replica serves", retry_after_seconds=0.1
                )
            return await inner(call)

        return step
