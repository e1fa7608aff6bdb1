"""Limit the time that a stream may be silent."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

from spawnmesh_model_router.domain.answer import StreamTimeouts

T = TypeVar("T")


class StreamIdleTimeout(TimeoutError):
    """An answer that had begun was silent for too long."""


async def with_idle_timeout(events: AsyncIterator[T], timeouts: StreamTimeouts) -> AsyncGenerator[T, None]:
    """Yield the events. The time that the consumer takes does not count.

    Raises TimeoutError if the first event comes too late, and StreamIdleTimeout for a later one.
    """
    seconds, error_type = timeouts.first_seconds, TimeoutError
    while True:
        try:
            async with asyncio.timeout(seconds) as timeout:
                event = await anext(events)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise error_type("no event in time") from error
        yield event
        seconds, error_type = timeouts.idle_seconds, StreamIdleTimeout
