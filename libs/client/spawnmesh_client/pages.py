"""Lists that come in pages."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol, Self, TypeVar

import grpc.aio

from spawnmesh_client.token_peer import TokenPeer


class ListRequest(Protocol):
    """A request for a page of a list."""

    page_token: str

    def CopyFrom(self, other: Self) -> None:
        """Take the fields of another request."""


class ListPage(Protocol):
    """A page, with the token of the next one."""

    @property
    def next_page_token(self) -> str:
        """Empty on the last page."""


Q = TypeVar("Q", bound=ListRequest)
R = TypeVar("R", bound=ListPage)


async def pages_of(
    peer: TokenPeer, method: "grpc.aio.UnaryUnaryMultiCallable[Q, R]", request: Q
) -> AsyncGenerator[R, None]:
    """Yield the pages of a list, from the page of the request to the last one, as they are needed.

    A page can be empty although others follow.
    """
    wanted = type(request)()
    wanted.CopyFrom(request)
    while True:
        page = await peer.unary(method, wanted)
        yield page
        if not page.next_page_token:
            return
        wanted.page_token = page.next_page_token


async def paged(peer: TokenPeer, method: Any, request: Any, items: str) -> AsyncIterator[Any]:
    """Yield the items of every page. `items` is the field that has them."""
    async for page in pages_of(peer, method, request):
        for one in getattr(page, items):
            yield one
