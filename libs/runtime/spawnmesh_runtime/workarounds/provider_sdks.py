"""Correct two behaviours of provider SDKs that have no public switch.

Headers of the environment. Upstream: the SDKs of Anthropic and OpenAI read additional headers from
variables such as `ANTHROPIC_CUSTOM_HEADERS` and send them to every endpoint, and a copy of a client
reads them again. A router has several providers, and a header for one must not reach another.
Remove the function when a client can be made without the environment.

Pings. Upstream: the streams of Anthropic's SDK drop the event `ping` without yielding anything. A
thinking model may send nothing else for minutes, and an idle timeout would cut it. Remove the
function when a stream yields pings.

No issue is known for either: both are documented behaviour of the SDKs.
"""

from collections.abc import AsyncIterator
from typing import Any


def forget_environment_headers(client: Any) -> None:
    """Remove the headers that the client has read from the environment."""
    client._custom_headers = {}


def yield_pings(stream: Any) -> None:
    """Make an Anthropic stream yield each ping as an event of the unknown type `alive`."""
    received = stream._iter_events()

    async def renamed() -> AsyncIterator[Any]:
        async for event in received:
            yield type(event)(event="alive", data='{"type": "ping"}') if event.event == "ping" else event

    stream._iter_events = renamed
