"""Streams that are read one item ahead, so that several can be awaited at once."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """A stream whose next item is being read, once `begin` was called. Close it at the end."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self.next: asyncio.Task[T | None]

    def begin(self) -> "asyncio.Task[T | None]":
        """Begin to read the next item; None is the end. The one before it was taken."""
        self.next = asyncio.create_task(self._read())
        return self.next

    async def close(self) -> None:
        """End the stream."""
        self.next.cancel()
        try:
            await asyncio.gather(self.next, return_exceptions=True)
        finally:
            await self._items.aclose()

    async def _read(self) -> T | None:
        return await anext(self._items, None)
