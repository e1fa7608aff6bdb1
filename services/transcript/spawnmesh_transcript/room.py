"""How much of something large a process holds at once, whoever asks for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """So many bytes, for which callers wait in the order in which they came. What is larger than all of it is held by itself."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = self._left_bytes = size_bytes
        self._first = asyncio.Lock()
        self._given_back = asyncio.Event()

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Holds so many bytes during the block."""
        wanted = min(size_bytes, self._size_bytes)
        async with self._first:
            while self._left_bytes < wanted:
                self._given_back.clear()
                await self._given_back.wait()
            self._left_bytes -= wanted
        try:
            yield
        finally:
            self._left_bytes += wanted
            self._given_back.set()
