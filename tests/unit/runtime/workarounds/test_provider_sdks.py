"""The SDKs read headers from the environment and drop pings; with the workaround they do neither."""

import anthropic
import httpx2
import pytest
from spawnmesh_runtime.workarounds.provider_sdks import forget_environment_headers, yield_every_event

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> anthropic.AsyncAnthropic:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-of-another: 1")
    return anthropic.AsyncAnthropic(api_key="key", base_url="http://127.0.0.1:1")


def test_headers_of_the_environment_are_still_sent(client: anthropic.AsyncAnthropic) -> None:
    assert "x-of-another" in client.default_headers, "remove forget_environment_headers"


def test_headers_of_the_environment_can_be_forgotten(client: anthropic.AsyncAnthropic) -> None:
    forget_environment_headers(client)
    assert "x-of-another" not in client.default_headers


async def events(client: anthropic.AsyncAnthropic, *, with_pings: bool) -> int:
    """Return how many events a stream of one ping yields."""
    stream = anthropic.AsyncStream(cast_to=object, response=httpx2.Response(200, content=PING), client=client)
    if with_pings:
        yield_every_event(stream)
    return len([event async for event in stream])


async def test_a_ping_is_still_dropped(client: anthropic.AsyncAnthropic) -> None:
    assert await events(client, with_pings=False) == 0, "remove yield_every_event"


async def test_a_ping_can_be_yielded(client: anthropic.AsyncAnthropic) -> None:
    assert await events(client, with_pings=True) == 1
