"""Calls to other services of the mesh, with trace, token, deadline and typed errors."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import grpc.aio
import structlog
from spawnmesh_calls.channel_options import peer_options
from spawnmesh_calls.connection import Connection, open_connection
from spawnmesh_calls.silence_probe import SILENT_SECONDS, SilenceProbe
from spawnmesh_calls.spans import client_spans
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.impersonation import outgoing_token
from spawnmesh_runtime.interceptors.deadline import remaining_seconds
from spawnmesh_runtime.peer_probe import check_peer
from spawnmesh_runtime.process import Process

_MARGIN_SECONDS = 0.02  # Reserved to answer the incoming call after the outgoing call timed out.

Q = TypeVar("Q")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Peer:
    """A channel to a service, for the calls of this process.

    `name` appears in errors and telemetry. Create stubs on `channel`, and call their methods with
    `unary` and `stream`. The probe, if there is one, looks for replicas that do not answer.
    """

    name: str
    channel: grpc.aio.Channel
    process: Process
    probe: SilenceProbe | None = None
    connection: Connection = field(init=False)
    """The same channel for calls with another token and no deadline of their caller."""

    def __post_init__(self) -> None:
        spans = client_spans(self.process.tracer)
        connection = Connection(self.name, self.channel, self.probe, spans)
        object.__setattr__(self, "connection", connection)
        object.__setattr__(self, "channel", connection.channel)

    async def unary(
        self, method: "grpc.aio.UnaryUnaryMultiCallable[Q, R]", request: Q, *, timeout_seconds: float = 10.0
    ) -> R:
        """Call `stub.Method` and return the response; the request of a client stream is
        an iterator.

        Raises MeshError if the call fails, and the exception of the iterator. The deadline is the
        earlier of the timeout and the deadline of the call being served here.
        """
        seconds = _shrunk(timeout_seconds)
        return await self.connection.unary(method, request, token=self._token, timeout_seconds=seconds)

    async def stream(
        self,
        method: "grpc.aio.UnaryStreamMultiCallable[Q, R]",
        request: Q,
        *,
        timeout_seconds: float,
        quiet_seconds: float = SILENT_SECONDS,
    ) -> AsyncGenerator[R, None]:
        """Yield the responses of `stub.Method`, under the rules of `unary`.

        Closing the generator cancels it. The probe looks at the replica if no response comes for
        `quiet_seconds`.
        """
        messages = self.connection.stream(
            method,
            request,
            token=self._token,
            timeout_seconds=_shrunk(timeout_seconds),
            quiet_seconds=quiet_seconds,
        )
        async with aclosing(messages):
            async for message in messages:
                yield message

    def _token(self) -> str:
        return outgoing_token(self.process.minter)


@asynccontextmanager
async def open_peer(
    process: Process, name: str, target: str, *, certificate_host: str = "", is_dependency: bool = True
) -> AsyncIterator[Peer]:
    """Open a channel to `target` and close it at the end of the block.

    `target` is as for `open_connection`. `certificate_host` is the name in the peer's certificate,
    if the target has another one. The service is one of the process's dependencies during the
    block, unless the process works without it.
    """
    options = peer_options(process.settings.max_message_bytes, certificate_host)
    async with open_connection(name, target, process.tls, options, report_silence=log_silence) as opened:
        watching = process.dependencies.watching(name, partial(check_peer, opened.channel))
        with watching if is_dependency else nullcontext():
            yield Peer(name, opened.channel, process, opened.probe)


def log_silence(name: str) -> None:
    """Log that a peer keeps its connections open and does not answer."""
    structlog.get_logger().warning("peer_silent", peer=name)


def _shrunk(timeout_seconds: float) -> float:
    remaining = remaining_seconds()
    if remaining is None:
        return timeout_seconds
    if remaining <= _MARGIN_SECONDS:
        raise MeshError(Reason.DEADLINE_EXCEEDED, "the deadline leaves no time for a further call")
    return min(timeout_seconds, remaining - _MARGIN_SECONDS)
