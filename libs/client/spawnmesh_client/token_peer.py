"""A service with the client's token for each call."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

import grpc.aio
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

Q = TypeVar("Q")
R = TypeVar("R")

Token = str | Callable[[], str]
"""A bearer token, or a function that returns one before each call."""


@dataclass(frozen=True, slots=True)
class TokenPeer:
    """Make stubs' calls with the client's token, in any task:

    `await peer.unary(stub.ListPlugins, request)`.
    """

    peer: Peer
    token: Token = field(repr=False)

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel for stubs."""
        return self.peer.channel

    async def unary(
        self, method: "grpc.aio.UnaryUnaryMultiCallable[Q, R]", request: Q, *, timeout_seconds: float = 10.0
    ) -> R:
        """Make a call and return its response. Raises MeshError for every error."""
        with use_token(self._token()):
            return await self.peer.unary(method, request, timeout_seconds=timeout_seconds)

    async def stream(
        self, method: "grpc.aio.UnaryStreamMultiCallable[Q, R]", request: Q, *, timeout_seconds: float
    ) -> AsyncGenerator[R, None]:
        """Yield the messages of a streaming call, with the same errors.

        Closing the generator cancels the call.
        """
        async with aclosing(self.peer.stream(method, request, timeout_seconds=timeout_seconds)) as messages:
            while True:
                # Set the token around each step, not around the loop: a suspended generator must
                # not leave the context changed.
                with use_token(self._token()):
                    try:
                        message = await anext(messages)
                    except StopAsyncIteration:
                        return
                yield message

    def _token(self) -> str:
        return self.token if isinstance(self.token, str) else self.token()
