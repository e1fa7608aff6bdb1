"""How long who sends a file, or takes one, may be waited for."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TypeVar

from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

T = TypeVar("T")

_SLOWEST_BYTES_A_SECOND = 64 * 1024
_SLOWEST = f"less than {_SLOWEST_BYTES_A_SECOND // 1024} KiB a second"


class Pace:
    """One caller's time: as long as it may be silent, which waiting for it uses up and bytes bring back. The blocks of it are the waiting.

    Raises DEADLINE_EXCEEDED, with these words, out of a block in which the time is up; an asynchronous generator may yield there.
    """

    def __init__(self, idle_seconds: float, words: str, *, monotonic: Monotonic = monotonic_seconds) -> None:
        self._idle_seconds = idle_seconds
        self._words = words
        self._monotonic = monotonic
        self._left_seconds = idle_seconds

    async def __aenter__(self) -> None:
        self._begin_time = self._monotonic()
        self._bound = asyncio.timeout(self._left_seconds)
        await self._bound.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left_seconds -= self._monotonic() - self._begin_time
        try:
            await self._bound.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise self._refusal() from None
        if (
            isinstance(error, GeneratorExit) and self._bound.expired()
        ):  # It was this that cancelled who has the generator.
            raise self._refusal() from None

    def came(self, size_bytes: int) -> None:
        """So many bytes of the file got on."""
        self._left_seconds = min(self._idle_seconds, self._left_seconds + size_bytes / _SLOWEST_BYTES_A_SECOND)

    def _refusal(self) -> MeshError:
        return MeshError(Reason.DEADLINE_EXCEEDED, self._words)


class SenderPace(Pace):
    """The time of one who sends."""

    def __init__(self, idle_seconds: float, *, monotonic: Monotonic = monotonic_seconds) -> None:
        words = f"the sender was silent, or sent {_SLOWEST}, for too long; go on with another stream from where the upload is durable"
        super().__init__(idle_seconds, words, monotonic=monotonic)

    async def next(self, messages: AsyncIterator[T]) -> T | None:
        """The next message, None at the end. Raises DEADLINE_EXCEEDED for a sender whose time is up."""
        async with self:
            return await anext(messages, None)


def reader_pace(idle_seconds: float) -> Pace:
    """The time of one who reads."""
    words = (
        f"the reader took nothing, or {_SLOWEST}, for too long; go on with another call from the offset of what came"
    )
    return Pace(idle_seconds, words)
