"""Parse server-sent events from the bytes of a response, as many at a time as have arrived.

httpx-sse is no replacement. It imports httpx, which the service does not install (the SDKs use
httpx2). It yields one event at a time and rejects a response that is not `text/event-stream`. It
drops an event without a final blank line, and a JSON error in the place of a stream; some endpoints
send both.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from spawnmesh_core.json_text import require_few_nodes

DONE = "[DONE]"
"""The data that ends OpenAI's streams."""

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""An event must be complete within so many bytes. No answer of the mesh may be larger."""

MAX_EVENT_VALUES = 100_000
"""An event has at most so many JSON values: each takes a hundred bytes in memory, two as text."""

MAX_ERROR_BYTES = 1024 * 1024
"""So much of an error body is read."""

_MAX_OTHER_LINES = 256


class EventReader:
    """Splits bytes into the data of events. Ignores comments and the fields `id` and `retry`."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        """The name of each event that was returned last; empty for an event without one."""
        self._unread: list[bytes] = []
        """The received part of a line that is not complete."""
        self._byte_count = 0
        """The bytes that were received since the last event."""
        self._name = b""
        self._data: list[bytes] = []
        self._other: list[bytes] = []
        self._other_room = MAX_ERROR_BYTES

    def feed(self, received: bytes) -> list[str]:
        """Return the data of the events that are complete now.

        Raises UnicodeDecodeError for data that is not UTF-8, and ValueError for an event above
        MAX_EVENT_BYTES or MAX_EVENT_VALUES.
        """
        self.names = []
        self._byte_count += len(received)
        self._unread.append(received)
        if b"\n" not in received:
            return self._within_bounds([])
        *lines, rest = b"".join(self._unread).replace(b"\r\n", b"\n").split(b"\n")
        self._unread = [rest]
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line:
                if any(self._data):  # Some endpoints send empty data as a keepalive.
                    events.append(_event(b"\n".join(self._data)))
                    self.names.append(self._name)
                self._name = b""
                self._data.clear()
            elif line.startswith(b"event:"):
                self._name = line[6:].removeprefix(b" ")
            else:
                self._keep_other(line)
        if events:
            self._byte_count = len(rest)
        return self._within_bounds(events)

    def _keep_other(self, line: bytes) -> None:
        """Keep a line that may belong to a JSON error."""
        has_room = len(self._other) < _MAX_OTHER_LINES and len(line) <= self._other_room
        if has_room and not line.startswith(b":"):
            self._other.append(line)
            self._other_room -= len(line)

    def _within_bounds(self, events: list[str]) -> list[str]:
        if self._byte_count > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def end(self) -> list[str]:
        """Return the event that ends with the bytes: some endpoints omit the last blank line."""
        return self.feed(b"\n\n")

    def error_body(self) -> dict[str, Any] | None:
        """Return the error of a JSON body that was sent instead of events, or between them; None if
        there is none.
        """
        try:
            body = json.loads(_event(b"\n".join(self._other)))
        except (ValueError, RecursionError):
            return None
        return body if isinstance(body, dict) and "error" in body else None


def _event(data: bytes) -> str:
    text = data.decode()
    require_few_nodes(text, MAX_EVENT_VALUES)
    return text


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
