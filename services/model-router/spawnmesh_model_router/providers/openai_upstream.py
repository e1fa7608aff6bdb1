"""Calls of OpenAI and its kin through the official SDK."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import httpx2
import openai

from spawnmesh_model_router.config import Model, Provider
from spawnmesh_model_router.credentials import Credential
from spawnmesh_model_router.providers.answer import Finished, Pieces, Timing
from spawnmesh_model_router.providers.clients import Clients
from spawnmesh_model_router.providers.openai_answer import read_chat
from spawnmesh_model_router.providers.openai_http import OpenAiLine, Refused
from spawnmesh_model_router.providers.openai_request import chat_request
from spawnmesh_model_router.providers.pace import paced
from spawnmesh_model_router.providers.question import Question
from spawnmesh_model_router.providers.responses_answer import ends, error_in, read_response
from spawnmesh_model_router.providers.responses_request import responses_request, without_reasoning
from spawnmesh_model_router.providers.sse import read_events
from spawnmesh_model_router.providers.thinking import told

_URL = "https://api.openai.com/v1"  # Named here, for the SDK would else take the address from the environment of the process.
_FOREIGN_SEAL = "invalid_encrypted_content"  # Only an API that is given sealed reasoning says so.
_DRAIN_SECONDS = 0.05


@asynccontextmanager
async def open_upstream(name: str, provider: Provider, connect_seconds: float) -> AsyncIterator["OpenAiUpstream"]:
    """The provider, with connections that are closed with the block."""
    async with openai.DefaultAioHttpClient() as http:
        yield OpenAiUpstream(name, provider, http, connect_seconds)


def _without_environment(client: openai.AsyncOpenAI) -> openai.AsyncOpenAI:
    """The client without the headers that the SDK reads from the environment of the process: every endpoint would be sent them."""
    client.organization = client.project = None
    client._custom_headers = {}  # There is no other way to them: a copy of the client reads them again.
    return client


class OpenAiUpstream:
    """OpenAI, or an endpoint that speaks its chat completions or its responses."""

    def __init__(
        self, name: str, provider: Provider, http: openai.DefaultAioHttpClient, connect_seconds: float
    ) -> None:
        self._name = name
        self._kind = provider.kind
        self._clients = Clients(
            lambda key: OpenAiLine(
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
