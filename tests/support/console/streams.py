"""Server-sent events of the console, as a browser reads them."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx2


@dataclass(frozen=True)
class StreamEvent:
    """An event of a stream. `data` is the parsed JSON; None for an event without data."""

    name: str
    cursor: str
    data: Any


async def stream_events(
    client: httpx2.AsyncClient, path: str, cursor: str = ""
) -> AsyncIterator[StreamEvent]:
    """Yield the events behind a cursor until the stream ends or the caller stops."""
    headers = {"accept": "text/event-stream", **({"last-event-id": cursor} if cursor else {})}
    async with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        async with aclosing(answer.aiter_lines()) as lines:
            async for line in lines:
                name, _, value = line.partition(": ")
                if line and not line.startswith(":"):
                    fields[name.removesuffix(":")] = value
                elif fields:
                    data = fields.get("data", "")
                    yield StreamEvent(
                        fields.get("event", ""), fields.get("id", ""), json.loads(data) if data else None
                    )
                    fields = {}
