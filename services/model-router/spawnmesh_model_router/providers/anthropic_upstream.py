"""Calls of Anthropic through the official SDK."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anthropic

from spawnmesh_model_router.config import Model, Provider
from spawnmesh_model_router.credentials import Credential
from spawnmesh_model_router.providers.answer import Pieces, Timing
from spawnmesh_model_router.providers.anthropic_answer import read_messages
from spawnmesh_model_router.providers.anthropic_request import messages_request
from spawnmesh_model_router.providers.clients import Clients
from spawnmesh_model_router.providers.pace import paced
from spawnmesh_model_router.providers.question import Question
from spawnmesh_model_router.providers.thinking import told

_URL = "https://api.anthropic.com"  # Named here, for the SDK would else take the address from the environment of the process.


@asynccontextmanager
async def open_upstream(_name: str, provider: Provider, connect_seconds: float) -> AsyncIterator["AnthropicUpstream"]:
    """The provider, with connections that are closed with the block."""
    async with anthropic.DefaultAioHttpClient() as http:
        yield AnthropicUpstream(provider, http, connect_seconds)


def _without_environment(client: anthropic.AsyncAnthropic) -> anthropic.AsyncAnthropic:
    """The client without the headers that the SDK reads from the environment of the process: every endpoint would be sent them."""
    client._custom_headers = {}  # There is no other way to them: a copy of the client reads them again.
    return client


def _give_pings(stream: anthropic.AsyncStream[Any]) -> None:
    """Has the stream give pings too, as events that nobody reads: the SDK drops them, and nothing else may come while a model thinks."""
    received = stream._iter_events()

    async def named() -> AsyncIterator[Any]:
        async for event in received:
            yield type(event)(event="alive", data='{"type": "ping"}') if event.event == "ping" else event

    stream._iter_events = named  # type: ignore[method-assign]  # There is no other way to what it drops.


class AnthropicUpstream:
    """Anthropic."""

    def __init__(self, provider: Provider, http: anthropic.DefaultAioHttpClient, connect_seconds: float) -> None:
        self._clients = Clients(
            lambda key: _without_environment(
                anthropic.AsyncAnthropic(
                    api_key=key,
                    base_url=provider.base_url or _URL,
                    timeout=anthropic.Timeout(None, connect=connect_seconds),
                    max_retries=0,
                    http_client=http,
                    open_telemetry=False,  # Our own spans tell it, without content.
                )
            )
        )

    def ask(self, question: Question, name: str, model: Model, credential: Credential, timing: Timing) -> Pieces:
        body = messages_request(question, name, model.max_output, told(question, "anthropic", model))
        return self._answer(body, self._clients.of(credential), timing)

    async def _answer(self, body: dict[str, Any], client: anthropic.AsyncAnthropic, timing: Timing) -> Pieces:
        async with asyncio.timeout(timing.first_seconds):
            stream = await client.messages.create(**body, stream=True)
        _give_pings(stream)
        async with stream, aclosing(read_messages(paced(aiter(stream), timing))) as pieces:
            async for piece in pieces:
                yield piece
