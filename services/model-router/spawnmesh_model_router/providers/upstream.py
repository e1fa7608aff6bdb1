"""Calls of providers through their official SDKs, over pooled connections. The SDKs' own retries are off: the chain decides about those."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar, cast

import anthropic
import httpx2
import openai
from google import genai
from google.genai import types as genai_types

from spawnmesh_model_router.config import Model, Provider
from spawnmesh_model_router.credentials import Credential
from spawnmesh_model_router.providers.answer import Finished, Pieces, Timing
from spawnmesh_model_router.providers.anthropic_answer import read_messages
from spawnmesh_model_router.providers.anthropic_request import messages_request
from spawnmesh_model_router.providers.gemini_answer import read_generated
from spawnmesh_model_router.providers.gemini_request import generate_request
from spawnmesh_model_router.providers.openai_answer import read_chat
from spawnmesh_model_router.providers.openai_http import OpenAiLine, Refused
from spawnmesh_model_router.providers.openai_request import chat_request
from spawnmesh_model_router.providers.pace import paced
from spawnmesh_model_router.providers.question import Question
from spawnmesh_model_router.providers.responses_answer import ends, error_in, read_response
from spawnmesh_model_router.providers.responses_request import responses_request, without_reasoning
from spawnmesh_model_router.providers.sse import read_events
from spawnmesh_model_router.providers.thinking import told

# Named here, for the SDKs would else take the address from the environment of the process.
_ANTHROPIC_URL = "https://api.anthropic.com"
_OPENAI_URL = "https://api.openai.com/v1"
_GEMINI_URL = "https://generativelanguage.googleapis.com"
_GEMINI_VERSION = "v1beta"  # The one that takes the parameters of tools as JSON Schema.
_FOREIGN_SEAL = "invalid_encrypted_content"  # Only an API that is given sealed reasoning says so.
_MOST_CLIENTS = 32
_DRAIN_SECONDS = 0.05

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
    """OpenAI, or an endpoint that speaks its chat completions or its responses."""

    def __init__(
        self, name: str, provider: Provider, http: openai.DefaultAioHttpClient, connect_seconds: float
    ) -> None:
        self._name = name
        self._kind = provider.kind
        self._clients = _Clients(
            lambda key: OpenAiLine(
                openai.AsyncOpenAI(
                    api_key=key,
                    base_url=provider.base_url or _OPENAI_URL,
                    timeout=openai.Timeout(None, connect=connect_seconds),
                    max_retries=0,
                    http_client=http,
                ),
                http,
            )
        )

    def ask(self, question: Question, name: str, model: Model, credential: Credential, timing: Timing) -> Pieces:
        said, line = told(question, self._kind, model), self._clients.of(credential)
        if model.api == "responses":
            thinks = bool(model.thinking)
            body = responses_request(question, self._name, name, model.max_output, thinks=thinks, told=said)
            return self._answer("/responses", body, read_response, line, timing)
        body = chat_request(question, name, model.max_output, compatible=self._kind == "openai_compatible", told=said)
        body["stream_options"] = {"include_usage": True}
        return self._answer("/chat/completions", body, read_chat, line, timing)

    async def _answer(
        self,
        path: str,
        body: dict[str, Any],
        read: Callable[[AsyncIterator[list[Any]]], Pieces],
        line: OpenAiLine,
        timing: Timing,
    ) -> Pieces:
        async with asyncio.timeout(timing.first_seconds):
            try:
                response = await line.post(path, body)
            except Refused as error:
                if error.code != _FOREIGN_SEAL:
                    raise
                # What was thought is sealed for another account; the conversation goes on without it.
                response = await line.post(path, without_reasoning(body))
        async with aclosing(response):
            received = response.aiter_bytes()
            async with aclosing(read(paced(_chunks(received, response.request), timing))) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Finished):
                        await _drain(received)
                    yield piece


async def _chunks(received: AsyncIterator[bytes], request: httpx2.Request) -> AsyncIterator[list[Any]]:
    """Chunks as they come together, to one that says it is the last. Raises openai.APIError for an error that comes in the place of one."""
    async with aclosing(read_events(received)) as events:
        async for chunks in events:
            for chunk in chunks:
                if error := chunk.get("error") or error_in(chunk):
                    raise openai.APIError("the answer is an error", request, body=error)
            yield chunks
            if ends(chunks[-1]):
                return


async def _drain(received: AsyncIterator[bytes]) -> None:
    """Reads what is left behind an answer, or its connection could not be used again; not for long, for some endpoints never end it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in received:
                pass


class AnthropicUpstream:
    """Anthropic."""

    def __init__(self, provider: Provider, http: anthropic.DefaultAioHttpClient, connect_seconds: float) -> None:
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
        body = messages_request(question, name, model.max_output, told(question, "anthropic", model))
        return self._answer(body, self._clients.of(credential), timing)

    async def _answer(self, body: dict[str, Any], client: anthropic.AsyncAnthropic, timing: Timing) -> Pieces:
        async with asyncio.timeout(timing.first_seconds):
            stream = await client.messages.create(**body, stream=True)
        async with stream, aclosing(read_messages(paced(aiter(stream), timing))) as pieces:
            async for piece in pieces:
                yield piece


class GeminiUpstream:
    """Gemini."""

    def __init__(self, provider: Provider, http: openai.DefaultAioHttpClient) -> None:
        self._clients = _Clients(
            lambda key: genai.Client(
                vertexai=False,
                api_key=key,
                http_options=genai_types.HttpOptions(
                    base_url=provider.base_url or _GEMINI_URL, api_version=_GEMINI_VERSION, httpx_async_client=http
                ),
            )
        )

    def ask(self, question: Question, name: str, model: Model, credential: Credential, timing: Timing) -> Pieces:
        # Those that think by levels are the ones that want signatures.
        strict = any(isinstance(said, str) for said in model.thinking.values())
        contents, config = generate_request(
            question, model.max_output, told(question, "gemini", model), needs_signatures=strict
        )
        return self._answer(name, contents, config, self._clients.of(credential), timing)

    async def _answer(self, name: str, contents: Any, config: Any, client: genai.Client, timing: Timing) -> Pieces:
        async with asyncio.timeout(timing.first_seconds):
            stream = await client.aio.models.generate_content_stream(model=name, contents=contents, config=config)
        # Closed by hand: nothing else would hang up on a provider that is still talking.
        async with (
            aclosing(cast(AsyncGenerator[Any, None], stream)),
            aclosing(read_generated(paced(aiter(stream), timing))) as pieces,
        ):
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
                http = await stack.enter_async_context(anthropic.DefaultAioHttpClient())
                upstreams[name] = AnthropicUpstream(provider, http, connect_seconds)
            elif provider.kind == "gemini":
                timeout = openai.Timeout(None, connect=connect_seconds)
                http = await stack.enter_async_context(openai.DefaultAioHttpClient(timeout=timeout))
                upstreams[name] = GeminiUpstream(provider, http)
            else:
                http = await stack.enter_async_context(openai.DefaultAioHttpClient())
                upstreams[name] = OpenAiUpstream(name, provider, http, connect_seconds)
        yield upstreams
