"""How long a sender may be waited for."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

T = TypeVar("T")

_SLOWEST_BYTES_A_SECOND = 64 * 1024


class UploadPace:
    """One sender's time: as long as it may be silent, which waiting for it uses up and bytes bring back."""

    def __init__(self, idle_seconds: float, *, monotonic: Monotonic = monotonic_seconds) -> None:
        self._idle_seconds = idle_seconds
        self._monotonic = monotonic
        self._left_seconds = idle_seconds

    async def next(self, messages: AsyncIterator[T]) -> T | None:
        """The next message, None at the end. Raises DEADLINE_EXCEEDED for a sender whose time is up."""
        begin = self._monotonic()
        try:
            async with asyncio.timeout(self._left_seconds):
                message = await anext(messages, None)
        except TimeoutError:
            raise MeshError(
                Reason.DEADLINE_EXCEEDED,
                f"the sender was silent, or sent less than {_SLOWEST_BYTES_A_SECOND // 1024} KiB a second, for too long; go on with another "
                "stream from where the upload is durable",
            ) from None
        self._left_seconds -= self._monotonic() - begin
        return message

    def came(self, size_bytes: int) -> None:
        """So many bytes of the file came."""
        self._left_seconds = min(self._idle_seconds, self._left_seconds + size_bytes / _SLOWEST_BYTES_A_SECOND)
