"""Server-sent events from the bytes of an answer, as many at a time as have arrived."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

DONE = "[DONE]"
"""What OpenAI's stream ends with instead of an event."""

_MOST_OTHER_LINES = 256


class EventReader:
    """Cuts bytes into the data of events. Fields but `data`, and comments, mean nothing here."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._other: list[bytes] = []

    def feed(self, received: bytes) -> list[str]:
        """The data of the events that are whole now. Raises UnicodeDecodeError for what is not UTF-8."""
        *lines, self._rest = (self._rest + received).replace(b"\r\n", b"\n").split(b"\n")
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                if any(self._data):  # Nothing at all is how some endpoints say that they are still there.
                    events.append(b"\n".join(self._data).decode())
                self._data.clear()
            elif len(self._other) < _MOST_OTHER_LINES:
                self._other.append(line)
        return events

    def end(self) -> list[str]:
        """The event that the end of the bytes ends, for an endpoint that leaves out the last blank line."""
        return self.feed(b"\n\n")

    def refusal(self) -> dict[str, Any] | None:
        """The error that came as a body of JSON, where events were to come."""
        try:
            body = json.loads(b"\n".join(self._other))
        except (ValueError, RecursionError):
            return None
        return body if isinstance(body, dict) and "error" in body else None


async def read_events(received: AsyncIterator[bytes]) -> AsyncGenerator[list[Any], None]:
    """The events as JSON, all that came together in one list; none of them empty. Ends at DONE, or where the bytes end. An error that some
    endpoints send instead of events counts as one.

    Raises ValueError for data that are not JSON.
    """
    reader, is_stream = EventReader(), False
    async for data in received:
        events = reader.feed(data)
        values = _values(events)
        if values:
            is_stream = True
            yield values
        if DONE in events:
            return
    if values := _values(reader.end()):
        yield values
    elif not is_stream and (refusal := reader.refusal()) is not None:
        yield [refusal]


def _values(events: list[str]) -> list[Any]:
    before_done = events[: events.index(DONE)] if DONE in events else events
    try:
        return [json.loads(event) for event in before_done]
    except RecursionError:
        raise ValueError("nested beyond reason") from None
