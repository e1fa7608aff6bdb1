"""A service of the mesh as one client reaches it: a channel, and the token that goes with each call."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

import grpc.aio
from spawnmesh_runtime.acting import acting_with_token
from spawnmesh_runtime.peers import Peer

Q = TypeVar("Q")
R = TypeVar("R")

Token = str | Callable[[], str]
"""A bearer token, or what gives a fresh one before each call."""


@dataclass(frozen=True, slots=True)
class TokenPeer:
    """Makes stubs' calls with the client's token, whatever task they are made in: `await peer.unary(stub.ListPlugins, request)`."""

    peer: Peer
    token: Token = field(repr=False)

    @property
    def channel(self) -> grpc.aio.Channel:
        """What stubs are made on."""
        return self.peer.channel

    async def unary(
        self, method: "grpc.aio.UnaryUnaryMultiCallable[Q, R]", request: Q, *, timeout_seconds: float = 10.0
    ) -> R:
        """The answer. Raises MeshError for whatever else comes back."""
        with acting_with_token(self._token()):
            return await self.peer.unary(method, request, timeout_seconds=timeout_seconds)

    async def stream(
        self, method: "grpc.aio.UnaryStreamMultiCallable[Q, R]", request: Q, *, timeout_seconds: float
    ) -> AsyncGenerator[R, None]:
        """What the call streams, under the same rules. Closing the generator cancels the call."""
        async with aclosing(self.peer.stream(method, request, timeout_seconds=timeout_seconds)) as messages:
            while True:
                # Around each step and not around the loop: a generator must not leave its context changed while it is suspended.
                with acting_with_token(self._token()):
                    try:
                        message = await anext(messages)
                    except StopAsyncIteration:
                        return
                yield message

    def _token(self) -> str:
        return self.token if isinstance(self.token, str) else self.token()
