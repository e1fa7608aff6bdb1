"""Call Gemini through the official SDK."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import openai
from google import genai
from google.genai import types as genai_types

from spawnmesh_model_router.clients.credentials import Credential
from spawnmesh_model_router.clients.providers.bounded_http import http_options
from spawnmesh_model_router.clients.providers.client_cache import ClientCache
from spawnmesh_model_router.clients.providers.gemini_request import generate_request
from spawnmesh_model_router.clients.providers.gemini_stream import read_generated
from spawnmesh_model_router.clients.providers.idle_timeout import with_idle_timeout
from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.clients.providers.thinking import thinking_setting
from spawnmesh_model_router.clients.providers.tls import trust_store
from spawnmesh_model_router.domain.answer import PieceStream, StreamTimeouts
from spawnmesh_model_router.domain.router_config import Model, Provider

# Without an explicit URL the SDK would read one from the environment of the process.
_URL = "https://generativelanguage.googleapis.com"
_VERSION = "v1beta"  # This version accepts tool parameters as JSON Schema.


@asynccontextmanager
async def open_upstream(
    _name: str, provider: Provider, connect_seconds: float
) -> AsyncIterator["GeminiUpstream"]:
    """Yield the provider. Its connections close with the block."""
    timeout = openai.Timeout(None, connect=connect_seconds)
    async with openai.DefaultAioHttpClient(timeout=timeout, **http_options(frames_events=True)) as http:
        yield GeminiUpstream(provider, http)


class GeminiUpstream:
    """Gemini."""

    def __init__(self, provider: Provider, http: openai.DefaultAioHttpClient) -> None:
        # The SDK also makes clients that are not used here. Without a context, each one reads the
        # certificate authorities, on the event loop.
        unused_args = {"verify": trust_store(), "ssl": trust_store()}
        self._clients = ClientCache(
            lambda key: genai.Client(
                vertexai=False,
                api_key=key,
                http_options=genai_types.HttpOptions(
                    base_url=provider.base_url or _URL,
                    api_version=_VERSION,
                    httpx_async_client=http,
                    client_args=unused_args,
                    async_client_args=unused_args,
                ),
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
        # Models with thinking levels are those that require signatures.
        strict = any(isinstance(value, str) for value in model.thinking.values())
        contents, config = generate_request(
            request, model.max_output, thinking_setting(request, "gemini", model), needs_signatures=strict
        )
        return self._answer(name, contents, config, self._clients.get(credential), timeouts)

    async def _answer(
        self, name: str, contents: Any, config: Any, client: genai.Client, timeouts: StreamTimeouts
    ) -> PieceStream:
        async with asyncio.timeout(timeouts.first_seconds):
            stream = await client.aio.models.generate_content_stream(
                model=name, contents=contents, config=config
            )
        # Close the SDK's stream explicitly: nothing else ends the call if the provider is still
        # sending.
        async with (
            aclosing(cast(AsyncGenerator[Any, None], stream)),
            aclosing(read_generated(with_idle_timeout(aiter(stream), timeouts))) as pieces,
        ):
            async for piece in pieces:
                yield piece
