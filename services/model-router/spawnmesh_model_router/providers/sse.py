"""Server-sent events from the bytes of an answer, as many at a time as have arrived."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

DONE = "[DONE]"
"""What OpenAI's stream ends with instead of an event."""


class EventReader:
    """Cuts bytes into the data of events. Fields but `data`, and comments, mean nothing here."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[str]:
        """The data of the events that are whole now. Raises UnicodeDecodeError for what is not UTF-8."""
        *lines, self._rest = (self._rest + received).replace(b"\r\n", b"\n").split(b"\n")
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data).decode())
                self._data.clear()
        return events

    def end(self) -> list[str]:
        """The event that the end of the bytes ends, for an endpoint that leaves out the last blank line."""
        return self.feed(b"\n\n")


async def read_events(received: AsyncIterator[bytes]) -> AsyncGenerator[list[Any], None]:
    """The events as JSON, all that came together in one list; none of them empty. Ends at DONE, or where the bytes end.

    Raises ValueError for data that are not JSON.
    """
    reader = EventReader()
    async for data in received:
        events = reader.feed(data)
        values = [json.loads(event) for event in _before_done(events)]
        if values:
            yield values
        if DONE in events:
            return
    if values := [json.loads(event) for event in _before_done(reader.end())]:
        yield values


def _before_done(events: list[str]) -> list[str]:
    return events[: events.index(DONE)] if DONE in events else events
