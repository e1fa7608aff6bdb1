"""Calls of Gemini through the official SDK."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import openai
from google import genai
from google.genai import types as genai_types

from spawnmesh_model_router.config import Model, Provider
from spawnmesh_model_router.credentials import Credential
from spawnmesh_model_router.providers.answer import Pieces, Timing
from spawnmesh_model_router.providers.clients import Clients
from spawnmesh_model_router.providers.gemini_answer import read_generated
from spawnmesh_model_router.providers.gemini_request import generate_request
from spawnmesh_model_router.providers.pace import paced
from spawnmesh_model_router.providers.question import Question
from spawnmesh_model_router.providers.thinking import told

_URL = "https://generativelanguage.googleapis.com"  # Named here, for the SDK would else take the address from the environment of the process.
_VERSION = "v1beta"  # The one that takes the parameters of tools as JSON Schema.


@asynccontextmanager
async def open_upstream(_name: str, provider: Provider, connect_seconds: float) -> AsyncIterator["GeminiUpstream"]:
    """The provider, with connections that are closed with the block."""
    timeout = openai.Timeout(None, connect=connect_seconds)
    async with openai.DefaultAioHttpClient(timeout=timeout) as http:
        yield GeminiUpstream(provider, http)


class GeminiUpstream:
    """Gemini."""

    def __init__(self, provider: Provider, http: openai.DefaultAioHttpClient) -> None:
        self._clients = Clients(
            lambda key: genai.Client(
                vertexai=False,
                api_key=key,
                http_options=genai_types.HttpOptions(
                    base_url=provider.base_url or _URL, api_version=_VERSION, httpx_async_client=http
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
