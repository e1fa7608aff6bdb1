"""Idle timeouts for callers that send or read a file."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TypeVar

from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

T = TypeVar("T")

_MIN_BYTES_PER_SECOND = 64 * 1024
_MIN_RATE = f"less than {_MIN_BYTES_PER_SECOND // 1024} KiB a second"


class IdleTimeout:
    """A caller's time budget.

    Waiting in a block of this object uses it, transferred bytes refill it.
    Raises DEADLINE_EXCEEDED with this message from the block in which the budget ends. An
    asynchronous generator may yield within the block.
    """

    def __init__(self, idle_seconds: float, message: str) -> None:
        self._idle_seconds = idle_seconds
        self._message = message
        self._left_seconds = idle_seconds

    async def __aenter__(self) -> None:
        self._begin_time = monotonic_seconds()
        self._timeout = asyncio.timeout(self._left_seconds)
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left_seconds -= monotonic_seconds() - self._begin_time
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise self._exceeded() from None
        # The timeout cancelled the consumer, which then closed this generator.
        if isinstance(error, GeneratorExit) and self._timeout.expired():
            raise self._exceeded() from None

    def refill(self, size_bytes: int) -> None:
        """Add the time for so many transferred bytes, up to the initial budget."""
        self._left_seconds = min(self._idle_seconds, self._left_seconds + size_bytes / _MIN_BYTES_PER_SECOND)

    def _exceeded(self) -> MeshError:
        return MeshError(Reason.DEADLINE_EXCEEDED, self._message)


class SenderIdleTimeout(IdleTimeout):
    """The idle timeout of a caller that sends a file."""

    def __init__(self, idle_seconds: float) -> None:
        message = (
            f"the sender was silent, or sent {_MIN_RATE}, for too long;"
            " resume with another stream at the durable offset"
        )
        super().__init__(idle_seconds, message)

    async def next(self, messages: AsyncIterator[T]) -> T | None:
        """Return the next message, None at the end. Raises DEADLINE_EXCEEDED."""
        async with self:
            return await anext(messages, None)


def reader_idle_timeout(idle_seconds: float) -> IdleTimeout:
    """Return the idle timeout of a caller that reads a file."""
    message = (
        f"the reader took nothing, or {_MIN_RATE}, for too long;"
        " call again with the offset behind the bytes that arrived"
    )
    return IdleTimeout(idle_seconds, message)
