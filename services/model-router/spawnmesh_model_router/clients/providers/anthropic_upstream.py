"""Call Anthropic through the official SDK."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anthropic
from spawnmesh_runtime.workarounds.provider_sdks import forget_environment_headers, yield_every_event

from spawnmesh_model_router.clients.credentials import Credential
from spawnmesh_model_router.clients.providers.anthropic_request import messages_request
from spawnmesh_model_router.clients.providers.anthropic_stream import read_messages
from spawnmesh_model_router.clients.providers.bounded_http import http_options
from spawnmesh_model_router.clients.providers.client_cache import ClientCache
from spawnmesh_model_router.clients.providers.idle_timeout import with_idle_timeout
from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.clients.providers.thinking import thinking_setting
from spawnmesh_model_router.domain.answer import PieceStream, StreamTimeouts
from spawnmesh_model_router.domain.router_config import Model, Provider

# Without an explicit URL the SDK would read one from the environment of the process.
_URL = "https://api.anthropic.com"


@asynccontextmanager
async def open_upstream(
    _name: str, provider: Provider, connect_seconds: float
) -> AsyncIterator["AnthropicUpstream"]:
    """Yield the provider. Its connections close with the block."""
    async with anthropic.DefaultAioHttpClient(**http_options(frames_events=True)) as http:
        yield AnthropicUpstream(provider, http, connect_seconds)


def _without_environment(client: anthropic.AsyncAnthropic) -> anthropic.AsyncAnthropic:
    forget_environment_headers(client)
    return client


class AnthropicUpstream:
    """Anthropic."""

    def __init__(
        self, provider: Provider, http: anthropic.DefaultAioHttpClient, connect_seconds: float
    ) -> None:
        self._clients = ClientCache(
            lambda key: _without_environment(
                anthropic.AsyncAnthropic(
                    api_key=key,
                    base_url=provider.base_url or _URL,
                    timeout=anthropic.Timeout(None, connect=connect_seconds),
                    max_retries=0,
                    http_client=http,
                    open_telemetry=False,  # Our own spans have no content.
                )
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
        body = messages_request(
            request, name, model.max_output, thinking_setting(request, "anthropic", model)
        )
        return self._answer(body, self._clients.get(credential), timeouts)

    async def _answer(
        self, body: dict[str, Any], client: anthropic.AsyncAnthropic, timeouts: StreamTimeouts
    ) -> PieceStream:
        async with asyncio.timeout(timeouts.first_seconds):
            stream = await client.messages.create(**body, stream=True)
        # Pings reset the idle timeout: a thinking model may send nothing else.
        yield_every_event(stream)
        async with stream, aclosing(read_messages(with_idle_timeout(aiter(stream), timeouts))) as pieces:
            async for piece in pieces:
                yield piece
