"""Calls of providers through their official SDKs, over pooled connections. The SDKs' own retries are off: the chain decides about those."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

import anthropic
import openai

from spawnmesh_model_router.config import Model, Provider
from spawnmesh_model_router.credentials import Credential
from spawnmesh_model_router.providers.answer import Pieces, Timing
from spawnmesh_model_router.providers.anthropic_answer import read_messages
from spawnmesh_model_router.providers.anthropic_request import messages_request
from spawnmesh_model_router.providers.openai_answer import read_chat
from spawnmesh_model_router.providers.openai_request import chat_request
from spawnmesh_model_router.providers.pace import paced
from spawnmesh_model_router.providers.question import Question

# Named here, for the SDKs would else take the address from the environment of the process.
_ANTHROPIC_URL = "https://api.anthropic.com"
_OPENAI_URL = "https://api.openai.com/v1"
_MOST_CLIENTS = 32

ClientT = TypeVar("ClientT")


class Upstream(Protocol):
    """One provider."""

    def ask(self, question: Question, name: str, model: Model, credential: Credential, timing: Timing) -> Pieces:
        """The answer of the model of this name as it comes. Raises whatever its SDK raises; closing the generator cancels the call."""


class _Clients(Generic[ClientT]):
    """One client of a provider for each of its credentials in use. All share its connections, so that one can be dropped at any time."""

    def __init__(self, make: Callable[[str], ClientT]) -> None:
        self._make = make
        self._clients: OrderedDict[str, ClientT] = OrderedDict()

    def of(self, credential: Credential) -> ClientT:
        """The client that calls with this credential."""
        client = self._clients.pop(credential.fingerprint, None) or self._make(credential.secret)
        self._clients[credential.fingerprint] = client
        if len(self._clients) > _MOST_CLIENTS:
            self._clients.popitem(last=False)
        return client


class OpenAiUpstream:
    """OpenAI, or an endpoint that speaks its chat completions."""

    def __init__(self, provider: Provider, http: openai.DefaultAsyncHttpxClient, connect_seconds: float) -> None:
        self._compatible = provider.kind == "openai_compatible"
        self._clients = _Clients(
            lambda key: openai.AsyncOpenAI(
                api_key=key,
                base_url=provider.base_url or _OPENAI_URL,
                timeout=openai.Timeout(None, connect=connect_seconds),
                max_retries=0,
                http_client=http,
            )
        )

    def ask(self, question: Question, name: str, model: Model, credential: Credential, timing: Timing) -> Pieces:
        body = chat_request(question, name, model.max_output, compatible=self._compatible)
        return self._answer(body, self._clients.of(credential), timing)

    async def _answer(self, body: dict[str, Any], client: openai.AsyncOpenAI, timing: Timing) -> Pieces:
        async with asyncio.timeout(timing.first_seconds):
            stream = await client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
        async with stream, aclosing(read_chat(paced(aiter(stream), timing))) as pieces:
            async for piece in pieces:
                yield piece


class AnthropicUpstream:
    """Anthropic."""

    def __init__(self, provider: Provider, http: anthropic.DefaultAsyncHttpxClient, connect_seconds: float) -> None:
        self._clients = _Clients(
            lambda key: anthropic.AsyncAnthropic(
                api_key=key,
                base_url=provider.base_url or _ANTHROPIC_URL,
                timeout=anthropic.Timeout(None, connect=connect_seconds),
                max_retries=0,
                http_client=http,
                open_telemetry=False,  # Our own spans tell it, without content.
            )
        )

    def ask(self, question: Question, name: str, model: Model, credential: Credential, timing: Timing) -> Pieces:
        return self._answer(messages_request(question, name, model.max_output), self._clients.of(credential), timing)

    async def _answer(self, body: dict[str, Any], client: anthropic.AsyncAnthropic, timing: Timing) -> Pieces:
        async with asyncio.timeout(timing.first_seconds):
            stream = await client.messages.create(**body, stream=True)
        async with stream, aclosing(read_messages(paced(aiter(stream), timing))) as pieces:
            async for piece in pieces:
                yield piece


@asynccontextmanager
async def open_upstreams(
    providers: Mapping[str, Provider], connect_seconds: float
) -> AsyncIterator[Mapping[str, Upstream]]:
    """The providers by name. Connections are made when they are needed, kept for the next call, and closed with the block."""
    upstreams: dict[str, Upstream] = {}
    async with AsyncExitStack() as stack:
        for name, provider in providers.items():
            if provider.kind == "anthropic":
                http = await stack.enter_async_context(anthropic.DefaultAsyncHttpxClient())
                upstreams[name] = AnthropicUpstream(provider, http, connect_seconds)
            else:
                http = await stack.enter_async_context(openai.DefaultAsyncHttpxClient())
                upstreams[name] = OpenAiUpstream(provider, http, connect_seconds)
        yield upstreams
