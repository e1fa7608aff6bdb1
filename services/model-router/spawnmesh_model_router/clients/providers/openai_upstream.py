"""Call OpenAI and compatible endpoints."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import httpx2
import openai
from spawnmesh_runtime.workarounds.provider_sdks import forget_environment_headers

from spawnmesh_model_router.clients.credentials import Credential
from spawnmesh_model_router.clients.providers.bounded_http import http_options
from spawnmesh_model_router.clients.providers.client_cache import ClientCache
from spawnmesh_model_router.clients.providers.idle_timeout import with_idle_timeout
from spawnmesh_model_router.clients.providers.openai_http import OpenAiHttpError, OpenAiTransport
from spawnmesh_model_router.clients.providers.openai_request import chat_request
from spawnmesh_model_router.clients.providers.openai_stream import read_chat
from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.clients.providers.responses_request import responses_request, without_reasoning
from spawnmesh_model_router.clients.providers.responses_stream import ends, error_in, read_response
from spawnmesh_model_router.clients.providers.sse import read_events
from spawnmesh_model_router.clients.providers.thinking import thinking_setting
from spawnmesh_model_router.domain.answer import Finished, PieceStream, StreamTimeouts
from spawnmesh_model_router.domain.router_config import Model, Provider

# Without an explicit URL the SDK would read one from the environment of the process.
_URL = "https://api.openai.com/v1"
_FOREIGN_REASONING = "invalid_encrypted_content"
_DRAIN_SECONDS = 0.05


@asynccontextmanager
async def open_upstream(
    name: str, provider: Provider, connect_seconds: float
) -> AsyncIterator["OpenAiUpstream"]:
    """Yield the provider. Its connections close with the block."""
    async with openai.DefaultAioHttpClient(**http_options(frames_events=False)) as http:
        yield OpenAiUpstream(name, provider, http, connect_seconds)


def _without_environment(client: openai.AsyncOpenAI) -> openai.AsyncOpenAI:
    client.organization = client.project = None
    forget_environment_headers(client)
    return client


class OpenAiUpstream:
    """OpenAI, or an endpoint with its chat completions or its responses."""

    def __init__(
        self, name: str, provider: Provider, http: openai.DefaultAioHttpClient, connect_seconds: float
    ) -> None:
        self._name = name
        self._kind = provider.kind
        self._clients = ClientCache(
            lambda key: OpenAiTransport(
                _without_environment(
                    openai.AsyncOpenAI(
                        api_key=key,
                        base_url=provider.base_url or _URL,
                        timeout=openai.Timeout(None, connect=connect_seconds),
                        max_retries=0,
                        http_client=http,
                    )
                ),
                http,
            )
        )

    def stream(
        self,
        request: ProviderRequest,
        name: str,
        model: Model,
        credential: Credential,
        timeouts: StreamTimeouts,
    ) -> PieceStream:
        thinking, transport = thinking_setting(request, self._kind, model), self._clients.get(credential)
        if model.api == "responses":
            thinks = bool(model.thinking)
            body = responses_request(
                request, self._name, name, model.max_output, thinks=thinks, thinking=thinking
            )
            return self._answer("/responses", body, read_response, transport, timeouts)
        body = chat_request(
            request, name, model.max_output, compatible=self._kind == "openai_compatible", thinking=thinking
        )
        body["stream_options"] = {"include_usage": True}
        return self._answer("/chat/completions", body, read_chat, transport, timeouts)

    async def _answer(
        self,
        path: str,
        body: dict[str, Any],
        read: Callable[[AsyncIterator[list[Any]]], PieceStream],
        transport: OpenAiTransport,
        timeouts: StreamTimeouts,
    ) -> PieceStream:
        async with asyncio.timeout(timeouts.first_seconds):
            try:
                response = await transport.post(path, body)
            except OpenAiHttpError as error:
                if error.code != _FOREIGN_REASONING:
                    raise
                # The reasoning is encrypted for another account. Continue without it.
                response = await transport.post(path, without_reasoning(body))
        async with aclosing(response):
            received = response.aiter_bytes()
            async with aclosing(
                read(with_idle_timeout(_chunks(received, response.request), timeouts))
            ) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Finished):
                        await _drain(received)
                    yield piece


async def _chunks(received: AsyncIterator[bytes], request: httpx2.Request) -> AsyncIterator[list[Any]]:
    """Yield the chunks in batches as they arrive, up to the last one.

    Raises openai.APIError for an error in the place of a chunk.
    """
    async with aclosing(read_events(received)) as events:
        async for chunks in events:
            for chunk in chunks:
                if error := chunk.get("error") or error_in(chunk):
                    raise openai.APIError("the answer is an error", request, body=error)
            yield chunks
            if ends(chunks[-1]):
                return


async def _drain(received: AsyncIterator[bytes]) -> None:
    """Read the rest of the response, so that its connection can be used again.

    Waits at most 50 ms, because some endpoints never end the response.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in received:
                pass
