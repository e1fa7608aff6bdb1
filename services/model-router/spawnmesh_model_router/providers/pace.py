"""Reads a stream, but waits for nothing for ever."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

from spawnmesh_model_router.providers.answer import Timing

T = TypeVar("T")


async def paced(events: AsyncIterator[T], timing: Timing) -> AsyncGenerator[T, None]:
    """The events. Raises TimeoutError when the next one takes too long; the time that the consumer takes does not count."""
    seconds = timing.first_seconds
    while True:
        try:
            async with asyncio.timeout(seconds):
                event = await anext(events)
        except StopAsyncIteration:
            return
        yield event
        seconds = timing.idle_seconds
