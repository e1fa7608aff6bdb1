"""Long lines of session files coming in: a process has few in memory, one of each tenant, and none for as long as its sender likes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_transcript.search_threads import Turns

LONG_BYTES = 1024 * 1024
"""What a stream may keep of a line without a place."""

_PLACES = 4


class Place:
    """One stream's place for a line, while it has one."""

    def __init__(
        self, turns: Turns, reading: asyncio.Lock, tenant_id: str, limit: asyncio.Timeout, seconds: float
    ) -> None:
        self._turns = turns
        self._reading = reading
        self._tenant_id = tenant_id
        self._limit = limit
        self._seconds = seconds
        self._held: AsyncExitStack | None = None

    async def take(self) -> None:
        """Waits for a place, unless the stream has one; meanwhile its sender is not read from. From then on the line has its time to come."""
        if self._held is None:
            held = AsyncExitStack()
            await held.enter_async_context(self._turns.of(self._tenant_id))
            self._held = held
            self._end_at(asyncio.get_running_loop().time() + self._seconds)

    @asynccontextmanager
    async def come(self) -> AsyncIterator[None]:
        """What has come is made entries of during the block, one long line at a time. It takes no time of its sender's, and then no place."""
        self._end_at(None)
        if self._held is None:
            yield
            return
        async with self._reading:
            yield
        await self.leave()

    async def leave(self) -> None:
        """Gives the place to the next, if the stream has one."""
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()

    def _end_at(self, time: float | None) -> None:
        if not self._limit.expired():
            self._limit.reschedule(time)


class LongLines:
    """The places of a process."""

    def __init__(self, *, seconds: float = 120.0) -> None:
        """A line has so many `seconds` to come once it has a place."""
        self._turns = Turns(_PLACES)
        self._reading = asyncio.Lock()
        self._seconds = seconds

    @asynccontextmanager
    async def open_place(self, tenant_id: str) -> AsyncIterator[Place]:
        """A place for the lines of one stream, one after the other. Raises DEADLINE_EXCEEDED where a line does not come in its time."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                place = Place(self._turns, self._reading, tenant_id, limit, self._seconds)
                try:
                    yield place
                finally:
                    await place.leave()
        except TimeoutError:
            if not limit.expired():
                raise
            raise MeshError(
                Reason.DEADLINE_EXCEEDED,
                f"a line of more than {LONG_BYTES} bytes has to come within {self._seconds:g} seconds; go on with another stream from where "
                "the import is durable",
            ) from None
