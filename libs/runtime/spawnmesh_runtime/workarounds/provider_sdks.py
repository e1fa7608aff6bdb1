"""Correct three behaviours of provider SDKs that have no public switch.

Headers of the environment. Upstream: the SDKs of Anthropic and OpenAI read additional headers from
variables such as `ANTHROPIC_CUSTOM_HEADERS` and send them to every endpoint, and a copy of a client
reads them again. A router has several providers, and a header for one must not reach another.
Remove the function when a client can be made without the environment.

Pings. Upstream: the streams of Anthropic's SDK drop the event `ping` without yielding anything. A
thinking model may send nothing else for minutes, and an idle timeout would cut it. Remove the
function when a stream yields pings.

Events without a name. Upstream: the same streams drop an event that has data and no name. Some
endpoints with Anthropic's format name no events, and an error of theirs would look like an answer
that breaks off. Remove the function when a stream reads the name from the data.

No issue is known for any of them: they are documented behaviour of the SDKs.
"""

import json
from collections.abc import AsyncIterator
from typing import Any


def forget_environment_headers(client: Any) -> None:
    """Remove the headers that the client has read from the environment."""
    client._custom_headers = {}


def yield_every_event(stream: Any) -> None:
    """Make an Anthropic stream yield each ping as an event of the unknown type `alive`, and name
    each event that has no name.
    """
    received = stream._iter_events()

    async def renamed() -> AsyncIterator[Any]:
        async for event in received:
            if event.event == "ping":
                yield type(event)(event="alive", data='{"type": "ping"}')
            elif event.event is None and (name := _name_in(event.data)):
                yield type(event)(event=name, data=event.data)
            else:
                yield event

    stream._iter_events = renamed


def _name_in(data: str) -> str:
    """Return the name of the event with this data; empty if the data has none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(value, dict):
        return ""
    name = "error" if "error" in value else value.get("type")
    return "alive" if name == "ping" else name if isinstance(name, str) else ""
