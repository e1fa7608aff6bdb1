"""Calls to other services of the mesh, with trace, token, deadline and typed errors."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc.aio
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.channel_options import peer_options
from spawnmesh_runtime.client_stream import call_client_stream
from spawnmesh_runtime.impersonation import outgoing_token
from spawnmesh_runtime.interceptors.deadline import remaining_seconds
from spawnmesh_runtime.interceptors.trace import CODES
from spawnmesh_runtime.method_paths import MethodPathChannel
from spawnmesh_runtime.peer_probe import check_peer
from spawnmesh_runtime.probed_calls import ProbedMessages, call_client_stream_probed, call_probed
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.renewable_channel import RenewableChannel
from spawnmesh_runtime.silence_probe import PeerSilent, SilenceProbe
from spawnmesh_runtime.telemetry import traceparent_of
from spawnmesh_runtime.wire_errors import error_from

_MARGIN_SECONDS = 0.02  # Reserved to answer the incoming call after the outgoing call timed out.

Q = TypeVar("Q")
R = TypeVar("R")


class PeerUnresponsive(MeshError):
    """The peer keeps its connections open and answers nothing, also no health check."""

    def __init__(self, name: str) -> None:
        super().__init__(
            Reason.DEPENDENCY_UNAVAILABLE,
            f"{name} does not answer; call again later",
            retry_after_seconds=1.0,
            facts={"dependency": name},
        )


@dataclass(frozen=True, slots=True)
class Peer:
    """A channel to a service. `name` appears in errors and telemetry.

    Create stubs on `channel`, and call their methods with `unary` and `stream`. The probe, if there
    is one, looks for replicas that do not answer.
    """

    name: str
    channel: grpc.aio.Channel
    process: Process
    probe: SilenceProbe | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.channel, MethodPathChannel):
            object.__setattr__(self, "channel", MethodPathChannel(self.channel))

    async def unary(
        self, method: "grpc.aio.UnaryUnaryMultiCallable[Q, R]", request: Q, *, timeout_seconds: float = 10.0
    ) -> R:
        """Call `stub.Method` and return the response; the request of a client stream is
        an iterator.

        Raises MeshError if the call fails, and the exception of the iterator. The deadline is the
        earlier of the timeout and the deadline of the call being served here.
        """
        timeout = _shrunk(timeout_seconds)
        span = self._span(method)
        metadata = self._metadata(span)
        status = "CANCELLED"
        answer: R
        try:
            answer = await self._answer(method, request, timeout=timeout, metadata=metadata)
            status = "OK"
        except PeerSilent:
            status = "UNAVAILABLE"
            raise PeerUnresponsive(self.name) from None
        except grpc.aio.AioRpcError as error:
            status = error.code().name
            raise error_from(self.name, error) from None
        finally:
            _end(span, status)
        return answer

    async def stream(
        self, method: "grpc.aio.UnaryStreamMultiCallable[Q, R]", request: Q, *, timeout_seconds: float
    ) -> AsyncGenerator[R, None]:
        """Yield the responses of `stub.Method`, under the rules of `unary`.

        Closing the generator cancels it.
        """
        timeout = _shrunk(timeout_seconds)
        span = self._span(method)
        status = "CANCELLED"
        if self.probe is not None and self.probe.is_away:
            _end(span, "UNAVAILABLE")
            raise PeerUnresponsive(self.name)
        try:
            call = method(request, timeout=timeout, metadata=self._metadata(span))
            messages = call if self.probe is None else ProbedMessages(self.probe, call)
            try:
                async for message in messages:
                    yield message
                status = "OK"
            except PeerSilent:
                status = "UNAVAILABLE"
                raise PeerUnresponsive(self.name) from None
            except grpc.aio.AioRpcError as error:
                status = error.code().name
                raise error_from(self.name, error) from None
            finally:
                call.cancel()
        finally:
            _end(span, status)

    async def _answer(self, method: Any, request: Any, **options: Any) -> Any:
        if isinstance(request, AsyncIterator):
            if self.probe is None:
                return await call_client_stream(method, request, **options)
            return await call_client_stream_probed(self.probe, method, request, **options)
        if self.probe is None:
            return await method(request, **options)
        return await call_probed(self.probe, method, request, **options)

    def _span(self, method: Any) -> Span:
        name = method.path.lstrip("/")
        service, _, rpc = name.rpartition("/")
        attributes = {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": rpc,
            "peer.service": self.name,
        }
        return self.process.tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)

    def _metadata(self, span: Span) -> tuple[tuple[str, str], ...]:
        token = outgoing_token(self.process.minter)
        traceparent = traceparent_of(span)
        bearer = ("authorization", f"Bearer {token}")
        return (bearer, ("traceparent", traceparent)) if traceparent else (bearer,)


@asynccontextmanager
async def open_peer(
    process: Process, name: str, target: str, *, certificate_host: str = "", is_dependency: bool = True
) -> AsyncIterator[Peer]:
    """Open a channel to `target` and close it at the end of the block.

    `target` is `host:port`, or `dns:///host:port` for all replicas behind a headless service. The
    channel connects at the first call. A call fails at once if no replica accepts connections, and
    soon if none answers. A call that broke, or whose replica is silent, is repeated on another
    replica if its contract allows it. `certificate_host` is the name in the
    peer's certificate, if the target has another one. The service is one of the process's
    dependencies during the block, unless the process works without it.
    """
    channel = RenewableChannel(target, process.tls, peer_options(process.settings, certificate_host))
    probe = SilenceProbe(name, channel)
    try:
        watching = process.dependencies.watching(name, partial(check_peer, channel))
        with watching if is_dependency else nullcontext():
            yield Peer(name, channel, process, probe)
    finally:
        await probe.close()
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
