"""Events as they are sent: together where they are known together, since a message costs more than what is in it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh_model_router.events import AttemptFailed, AttemptStarted, Event

_HELD_SECONDS = 0.005
_MOST_EVENTS = 64


async def gathered(events: AsyncGenerator[Event, None]) -> AsyncGenerator[list[Event], None]:
    """The events in order, in groups of at least one; closes `events` with itself, and raises what they raise behind the last group.

    They are read while a group is on its way, and no further than 64 events ahead. That an attempt begins or failed waits 5 ms for what follows.
    """
    known = _Known()
    reading = asyncio.create_task(known.read(events))
    try:
        while group := await known.take():
            yield group
        await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


class _Known:
    """Events that have come and are not taken yet."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._is_due = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_over = False
        self._held: asyncio.TimerHandle | None = None

    async def read(self, events: AsyncGenerator[Event, None]) -> None:
        """To the end, whatever it is."""
        try:
            async with aclosing(events):
                async for event in events:
                    self._events.append(event)
                    self._tell(event)
                    if len(self._events) >= _MOST_EVENTS:
                        self._has_room.clear()
                        await self._has_room.wait()
        finally:
            self._is_over = True
            self._is_due.set()

    async def take(self) -> list[Event]:
        """What there is as soon as something of it is due; nothing when all is over."""
        await self._is_due.wait()
        if self._held is not None:
            self._held.cancel()
            self._held = None
        if not self._is_over:
            self._is_due.clear()
        taken, self._events = self._events, []
        self._has_room.set()
        return taken

    def _tell(self, event: Event) -> None:
        if not isinstance(event, AttemptStarted | AttemptFailed):
            self._is_due.set()
        elif self._held is None:
            self._held = asyncio.get_running_loop().call_later(_HELD_SECONDS, self._is_due.set)
