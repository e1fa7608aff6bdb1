"""Reads a stream, but waits for nothing for ever."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

from spawnmesh_model_router.providers.answer import Timing

T = TypeVar("T")


class FellSilent(TimeoutError):
    """An answer that had begun said nothing for too long."""


async def paced(events: AsyncIterator[T], timing: Timing) -> AsyncGenerator[T, None]:
    """The events. Raises TimeoutError when the first one takes too long, and FellSilent when another does; the time that the consumer takes does
    not count."""
    seconds, late = timing.first_seconds, TimeoutError
    while True:
        try:
            async with asyncio.timeout(seconds) as patience:
                event = await anext(events)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            if not patience.expired():
                raise
            raise late("no event in time") from error
        yield event
        seconds, late = timing.idle_seconds, FellSilent
