"""Lists that come in pages."""

from collections.abc import AsyncIterator
from typing import Any

from spawnmesh_client.token_peer import TokenPeer


async def paged(peer: TokenPeer, method: Any, request: Any, items: str) -> AsyncIterator[Any]:
    """Yield the items of every page. Pages are fetched as needed.

    `items` is the field that has them. A list without pages ends with its only response.
    """
    while True:
        page = await peer.unary(method, request)
        for one in getattr(page, items):
            yield one
        token = getattr(page, "next_page_token", "")
        if not token:
            return
        request.page_token = token
