"""Parse server-sent events from the bytes of a response, as many at a time as have arrived.

httpx-sse is no replacement. It imports httpx, which the service does not install (the SDKs use
httpx2). It yields one event at a time and rejects a response that is not `text/event-stream`. It
drops an event without a final blank line, and a JSON error in the place of a stream; some endpoints
send both.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

DONE = "[DONE]"
"""The data that ends OpenAI's streams."""

_MAX_OTHER_LINES = 256


class EventReader:
    """Splits bytes into the data of events. Ignores comments and all fields but `data`."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._other: list[bytes] = []

    def feed(self, received: bytes) -> list[str]:
        """Return the data of the events that are complete now.

        Raises UnicodeDecodeError for data that is not UTF-8.
        """
        *lines, self._rest = (self._rest + received).replace(b"\r\n", b"\n").split(b"\n")
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                if any(self._data):  # Some endpoints send empty data as a keepalive.
                    events.append(b"\n".join(self._data).decode())
                self._data.clear()
            elif len(self._other) < _MAX_OTHER_LINES:
                self._other.append(line)
        return events

    def end(self) -> list[str]:
        """Return the event that ends with the bytes: some endpoints omit the last blank line."""
        return self.feed(b"\n\n")

    def error_body(self) -> dict[str, Any] | None:
        """Return the error of a JSON body that was sent instead of events; None if there
        is none.
        """
        try:
            body = json.loads(b"\n".join(self._other))
        except (ValueError, RecursionError):
            return None
        return body if isinstance(body, dict) and "error" in body else None


async def read_events(received: AsyncIterator[bytes]) -> AsyncGenerator[list[Any], None]:
    """Yield the events as JSON values; events that arrive together are one list.

    Ends at DONE or at the end of the bytes. A JSON error instead of events counts as one event.
    Raises ValueError for data that is not JSON.
    """
    reader, is_stream = EventReader(), False
    async for data in received:
        events = reader.feed(data)
        values = _parse(events)
        if values:
            is_stream = True
            yield values
        if DONE in events:
            return
    if values := _parse(reader.end()):
        yield values
    elif not is_stream and (body := reader.error_body()) is not None:
        yield [body]


def _parse(events: list[str]) -> list[Any]:
    before_done = events[: events.index(DONE)] if DONE in events else events
    try:
        return [json.loads(event) for event in before_done]
    except RecursionError:
        raise ValueError("nested too deeply") from None
