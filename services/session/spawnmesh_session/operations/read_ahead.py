"""Streams that are read one item ahead, so that several can be awaited at once."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """A stream whose next item is being read. Close it at the end."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self.next: asyncio.Task[T | None] = asyncio.create_task(self._read())

    def take(self) -> T | None:
        """Return the item that was read; None at the end. Raise the exception of the stream.

        Call it when `next` is done.
        """
        item = self.next.result()
        if item is not None:
            self.next = asyncio.create_task(self._read())
        return item

    async def close(self) -> None:
        """End the stream."""
        self.next.cancel()
        await asyncio.gather(self.next, return_exceptions=True)
        await self._items.aclose()

    async def _read(self) -> T | None:
        return await anext(self._items, None)
