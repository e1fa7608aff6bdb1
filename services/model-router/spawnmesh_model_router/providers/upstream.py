"""Calls of providers through their official SDKs, over pooled connections. The SDKs' own retries are off: the chain decides about those.

An SDK is loaded where a provider of its kind is configured, and before the first call: all three together take longer than all the rest of the
service to load, and most routers need one.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from spawnmesh_model_router.config import Model, Provider, ProviderKind
from spawnmesh_model_router.credentials import Credential
from spawnmesh_model_router.providers.answer import Pieces, Timing
from spawnmesh_model_router.providers.question import Question


class Upstream(Protocol):
    """One provider."""

    def ask(self, question: Question, name: str, model: Model, credential: Credential, timing: Timing) -> Pieces:
        """The answer of the model of this name as it comes. Raises whatever its SDK raises; closing the generator cancels the call."""


@asynccontextmanager
async def open_upstreams(
    providers: Mapping[str, Provider], connect_seconds: float
) -> AsyncIterator[Mapping[str, Upstream]]:
    """The providers by name. Connections are made when they are needed, kept for the next call, and closed with the block."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(_opener(provider.kind)(name, provider, connect_seconds))
            for name, provider in providers.items()
        }


def _opener(kind: ProviderKind) -> Callable[[str, Provider, float], AbstractAsyncContextManager[Upstream]]:
    if kind == "anthropic":
        from spawnmesh_model_router.providers import anthropic_upstream

        return anthropic_upstream.open_upstream
    if kind == "gemini":
        from spawnmesh_model_router.providers import gemini_upstream

        return gemini_upstream.open_upstream
    from spawnmesh_model_router.providers import openai_upstream

    return openai_upstream.open_upstream
