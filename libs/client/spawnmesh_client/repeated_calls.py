"""Calls that may be repeated, over a restart of their service."""

from typing import Any

from spawnmesh_core.errors import MeshError

from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.token_peer import TokenPeer

_RETRY_SECONDS = 60.0


async def call_again(peer: TokenPeer, method: Any, request: Any, *, timeout_seconds: float = 10.0) -> Any:
    """Make a call that may be repeated, over a restart of its service."""
    retry = RetryPolicy(_RETRY_SECONDS)
    while True:
        retry.begin_attempt()
        try:
            return await peer.unary(method, request, timeout_seconds=timeout_seconds)
        except MeshError as error:
            await retry.wait_before_next(error)
