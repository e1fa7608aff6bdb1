"""Send events in batches: one message for several events costs less than one for each."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh_model_router.domain.events import AttemptFailed, AttemptStarted, Event

_DELAY_SECONDS = 0.005
_MAX_EVENTS = 64


async def batch_events(events: AsyncGenerator[Event, None]) -> AsyncGenerator[list[Event], None]:
    """Yield the events in order, in batches of at least one event.

    Reads on while a batch is being sent, at most 64 events ahead. AttemptStarted and AttemptFailed
    wait up to 5 ms for the next event. Closes `events` with itself. Raises the error of `events`
    after the last batch.
    """
    buffer = _EventBuffer()
    # The generator owns the reader and ends it below. A TaskGroup would cancel the consumer of the
    # batches when `events` fails, before it has the last batch.
    reader = asyncio.create_task(buffer.fill(events))
    try:
        while batch := await buffer.take():
            yield batch
        await reader
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


class _EventBuffer:
    """Events that have arrived and are not sent yet."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._is_due = asyncio.Event()
        self._has_capacity = asyncio.Event()
        self._is_closed = False
        self._delay: asyncio.TimerHandle | None = None

    async def fill(self, events: AsyncGenerator[Event, None]) -> None:
        """Read all events; then close the buffer."""
        try:
            async with aclosing(events):
                async for event in events:
                    self._events.append(event)
                    self._schedule(event)
                    if len(self._events) >= _MAX_EVENTS:
                        self._has_capacity.clear()
                        await self._has_capacity.wait()
        finally:
            self._is_closed = True
            self._is_due.set()

    async def take(self) -> list[Event]:
        """Return all buffered events as soon as one is due; an empty list once the buffer is
        closed.
        """
        await self._is_due.wait()
        if self._delay is not None:
            self._delay.cancel()
            self._delay = None
        if not self._is_closed:
            self._is_due.clear()
        taken, self._events = self._events, []
        self._has_capacity.set()
        return taken

    def _schedule(self, event: Event) -> None:
        if not isinstance(event, AttemptStarted | AttemptFailed):
            self._is_due.set()
        elif self._delay is None:
            self._delay = asyncio.get_running_loop().call_later(_DELAY_SECONDS, self._is_due.set)
