"""Calls to other services of the mesh: with trace, token and deadline, and with refusals as the same typed errors on this side."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

import grpc.aio
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.acting import outgoing_token
from spawnmesh_runtime.channel_options import peer_options
from spawnmesh_runtime.client_stream import answer_to_stream
from spawnmesh_runtime.interceptors.deadline import remaining_seconds
from spawnmesh_runtime.interceptors.trace import CODES
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.renewed_channel import RenewedChannel
from spawnmesh_runtime.telemetry import traceparent_of
from spawnmesh_runtime.wire_errors import error_from

_MARGIN_SECONDS = 0.02  # Kept back of the incoming call's time, to answer it after the outgoing one ran out.
_path_of = attrgetter("_method")  # grpc keeps the path of a stub's method only here.

Q = TypeVar("Q")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Peer:
    """A channel to a service, named for people and for telemetry. Make stubs on `channel`, and call their methods through this."""

    name: str
    channel: grpc.aio.Channel
    process: Process

    async def unary(
        self, method: "grpc.aio.UnaryUnaryMultiCallable[Q, R]", request: Q, *, timeout_seconds: float = 10.0
    ) -> R:
        """Calls `stub.Method`; the request of a client stream is an iterator.

        Raises MeshError for whatever comes back but an answer, and what the iterator raises. The deadline is the nearer of the timeout and what
        is left to the call being served here.
        """
        timeout = _shrunk(timeout_seconds)
        span = self._span(_path_of(method))
        metadata = self._metadata(span)
        status = "CANCELLED"
        answer: R
        try:
            if isinstance(request, AsyncIterator):
                answer = await answer_to_stream(method, request, timeout=timeout, metadata=metadata)
            else:
                answer = await method(request, timeout=timeout, metadata=metadata)
            status = "OK"
        except grpc.aio.AioRpcError as error:
            status = error.code().name
            raise error_from(self.name, error) from None
        finally:
            _end(span, status)
        return answer

    async def stream(
        self, method: "grpc.aio.UnaryStreamMultiCallable[Q, R]", request: Q, *, timeout_seconds: float
    ) -> AsyncGenerator[R, None]:
        """Yields what `stub.Method` streams, under the same rules. Closing the generator cancels the call."""
        timeout = _shrunk(timeout_seconds)
        span = self._span(_path_of(method))
        status = "CANCELLED"
        try:
            call = method(request, timeout=timeout, metadata=self._metadata(span))
            try:
                async for message in call:
                    yield message
                status = "OK"
            except grpc.aio.AioRpcError as error:
                status = error.code().name
                raise error_from(self.name, error) from None
            finally:
                call.cancel()
        finally:
            _end(span, status)

    def _span(self, path: str | bytes) -> Span:
        name = (path.decode() if isinstance(path, bytes) else path).lstrip("/")
        service, _, method = name.rpartition("/")
        attributes = {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": method,
            "peer.service": self.name,
        }
        return self.process.tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)

    def _metadata(self, span: Span) -> tuple[tuple[str, str], ...]:
        token = outgoing_token(self.process.minter)
        traceparent = traceparent_of(span)
        bearer = ("authorization", f"Bearer {token}")
        return (bearer, ("traceparent", traceparent)) if traceparent else (bearer,)


@asynccontextmanager
async def open_peer(process: Process, name: str, target: str) -> AsyncIterator[Peer]:
    """A channel to `target` (`host:port`, or `dns:///host:port` for all replicas behind a headless name), closed with the block.

    Connects at the first call. Calls fail at once while nobody is there, and are tried again only where the contract allows it.
    """
    files, options = process.tls, peer_options(process.settings)
    channel = RenewedChannel(target, files, options) if files else grpc.aio.insecure_channel(target, options=options)
    try:
        yield Peer(name, channel, process)
    finally:
        await channel.close(None)


def _shrunk(timeout_seconds: float) -> float:
    remaining = remaining_seconds()
    if remaining is None:
        return timeout_seconds
    if remaining <= _MARGIN_SECONDS:
        raise MeshError(Reason.DEADLINE_EXCEEDED, "the deadline leaves no time for a further call")
    return min(timeout_seconds, remaining - _MARGIN_SECONDS)


def _end(span: Span, status: str) -> None:
    if span.is_recording():
        span.set_attribute("rpc.grpc.status_code", CODES[status])
        if status != "OK":
            span.set_attribute("error.type", status)
            if status != "CANCELLED":
                span.set_status(Status(StatusCode.ERROR))
    span.end()
