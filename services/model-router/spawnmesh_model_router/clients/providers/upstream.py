"""Call providers through their official SDKs, over pooled connections.

The retries of the SDKs are off: the failover chain decides on retries. An SDK is imported only if a
provider of its kind is configured, before the first call. The three SDKs together take longer to
import than the rest of the service, and most routers need one.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from spawnmesh_model_router.clients.credentials import Credential
from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.answer import PieceStream, StreamTimeouts
from spawnmesh_model_router.domain.router_config import Model, Provider, ProviderKind


class Upstream(Protocol):
    """The client of a provider."""

    def stream(
        self,
        request: ProviderRequest,
        name: str,
        model: Model,
        credential: Credential,
        timeouts: StreamTimeouts,
    ) -> PieceStream:
        """Render the request, and return a generator that yields the answer of the model `name` as
        it arrives.

        A thread may call the function itself, which does no I/O. The generator raises the errors of
        the SDK. Closing it cancels the call.
        """


@asynccontextmanager
async def open_upstreams(
    providers: Mapping[str, Provider], connect_seconds: float
) -> AsyncIterator[Mapping[str, Upstream]]:
    """Yield the providers by name.

    They connect on demand, and close their connections with the block.
    """
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(_opener(provider.kind)(name, provider, connect_seconds))
            for name, provider in providers.items()
        }


def _opener(kind: ProviderKind) -> Callable[[str, Provider, float], AbstractAsyncContextManager[Upstream]]:
    if kind == "anthropic":
        from spawnmesh_model_router.clients.providers import anthropic_upstream

        return anthropic_upstream.open_upstream
    if kind == "gemini":
        from spawnmesh_model_router.clients.providers import gemini_upstream

        return gemini_upstream.open_upstream
    from spawnmesh_model_router.clients.providers import openai_upstream

    return openai_upstream.open_upstream
