"""Limit the long lines of session files that a process has in memory, and how long a sender may
take.

A process holds few of them, and one of each tenant.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy

LONG_BYTES = 1024 * 1024
"""The bytes of a line that a stream may hold without a slot."""

_SLOTS = 4


class LongLineSlot:
    """A stream's slot for a long line, while it holds one."""

    def __init__(
        self,
        limiter: FairLimiter,
        processing: asyncio.Lock,
        tenant_id: str,
        timeout: asyncio.Timeout,
        seconds: float,
    ) -> None:
        self._limiter = limiter
        self._processing = processing
        self._tenant_id = tenant_id
        self._timeout = timeout
        self._seconds = seconds
        self._held: AsyncExitStack | None = None

    async def acquire(self) -> None:
        """Wait for a slot, unless the stream holds one, and start the timeout of the line.

        Meanwhile the stream is not read.
        """
        if self._held is None:
            held = AsyncExitStack()
            await held.enter_async_context(self._limiter.hold(self._tenant_id))
            self._held = held
            self._set_timeout(asyncio.get_running_loop().time() + self._seconds)

    @asynccontextmanager
    async def processing(self) -> AsyncIterator[None]:
        """Process what arrived during the block, one long line at a time, and release the slot
        after it.

        The block does not count against the timeout of the line.
        """
        self._set_timeout(None)
        if self._held is None:
            yield
            return
        async with self._processing:
            yield
        await self.release()

    async def release(self) -> None:
        """Release the slot, if the stream holds one."""
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()

    def _set_timeout(self, time: float | None) -> None:
        if not self._timeout.expired():
            self._timeout.reschedule(time)


class LongLineLimiter:
    """The slots of a process."""

    def __init__(self, *, seconds: float = 120.0) -> None:
        """Give a line so many `seconds` to arrive once its stream holds a slot."""
        self._limiter = FairLimiter(LimiterPolicy("long lines", "", _SLOTS, tenant_capacity=1))
        self._processing = asyncio.Lock()
        self._seconds = seconds

    @asynccontextmanager
    async def open_slot(self, tenant_id: str) -> AsyncIterator[LongLineSlot]:
        """Give one stream a slot for its long lines, one line after the other.

        Raises DEADLINE_EXCEEDED if a long line does not arrive in time.
        """
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                slot = LongLineSlot(self._limiter, self._processing, tenant_id, timeout, self._seconds)
                try:
                    yield slot
                finally:
                    await slot.release()
        except TimeoutError:
            if not timeout.expired():
                raise
            raise MeshError(
                Reason.DEADLINE_EXCEEDED,
                f"a line of more than {LONG_BYTES} bytes has to come within {self._seconds:g} seconds; "
                "resume with another stream from where the import is durable",
            ) from None
