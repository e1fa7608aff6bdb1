"""A service with the client's token for each call."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc.aio
from spawnmesh_calls.connection import Connection

Q = TypeVar("Q")
R = TypeVar("R")

Token = str | Callable[[], str]
"""A bearer token, or a function that returns one before each call."""


class UnknownPeer(ValueError):
    """The target of this service was not passed to `connect`."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the target of {name} was not passed to connect")
        self.name = name


@dataclass(frozen=True, slots=True)
class TokenPeer:
    """Make stubs' calls with the client's token, in any task:

    `await peer.unary(stub.ListPlugins, request)`.
    """

    connection: Connection
    token: Token = field(repr=False)

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel for stubs."""
        return self.connection.channel

    async def unary(
        self, method: "grpc.aio.UnaryUnaryMultiCallable[Q, R]", request: Q, *, timeout_seconds: float = 10.0
    ) -> R:
        """Make a call and return its response. Raises MeshError for every error."""
        return await self.connection.unary(
            method, request, token=self._token, timeout_seconds=timeout_seconds
        )

    def stream(
        self, method: "grpc.aio.UnaryStreamMultiCallable[Q, R]", request: Q, *, timeout_seconds: float
    ) -> AsyncGenerator[R, None]:
        """Yield the messages of a streaming call, with the same errors.

        Closing the generator cancels the call.
        """
        return self.connection.stream(method, request, token=self._token, timeout_seconds=timeout_seconds)

    def _token(self) -> str:
        return self.token if isinstance(self.token, str) else self.token()
