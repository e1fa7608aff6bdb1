"""Calls to a service of the mesh with token, trace, deadline and typed errors."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc.aio
from spawnmesh_core.errors import MeshError, Unavailable
from spawnmesh_core.reasons import Reason

from spawnmesh_calls.channel_options import Options
from spawnmesh_calls.client_stream import call_client_stream
from spawnmesh_calls.method_paths import MethodPathChannel
from spawnmesh_calls.probed_calls import ProbedMessages, call_client_stream_probed, call_probed
from spawnmesh_calls.renewable_channel import RenewableChannel
from spawnmesh_calls.silence_probe import SILENT_SECONDS, PeerSilent, ReportSilence, SilenceProbe
from spawnmesh_calls.tls_files import ServerTls, TlsFiles
from spawnmesh_calls.wire_errors import error_from

Q = TypeVar("Q")
R = TypeVar("R")


class PeerUnresponsive(Unavailable):
    """The peer keeps its connections open and answers nothing, also no health check."""

    def __init__(self, name: str) -> None:
        super().__init__(
            Reason.DEPENDENCY_UNAVAILABLE,
            f"{name} does not answer; call again later",
            retry_after_seconds=1.0,
            facts={"dependency": name},
        )


class TracedCall(Protocol):
    """The trace of one call."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers that are sent with the call, such as `traceparent`."""

    def end(self, status: str) -> None:
        """Note the end of the call: the name of its status code, such as `UNAVAILABLE`."""


ReadError = Callable[[str, grpc.aio.AioRpcError], MeshError]
"""Return the refusal of a failed call, from the name of the peer and the error of grpc."""

TraceCall = Callable[[str, str], TracedCall]
"""Begin the trace of a call, from the name of the peer and the path `/<service>/<method>`."""


class _Untraced:
    def headers(self) -> tuple[tuple[str, str], ...]:
        return ()

    def end(self, status: str) -> None:
        pass


_UNTRACED = _Untraced()


def untraced(peer: str, path: str) -> TracedCall:
    """Begin a call that leaves no trace."""
    return _UNTRACED


@dataclass(frozen=True, slots=True)
class Connection:
    """A channel to a service. `name` appears in errors and in the trace.

    Create stubs on `channel`, and call their methods with `unary` and `stream`. The probe, if there
    is one, looks for replicas that do not answer.
    """

    name: str
    channel: grpc.aio.Channel
    probe: SilenceProbe | None = None
    trace_call: TraceCall = untraced
    headers: tuple[tuple[str, str], ...] = ()
    """Sent with each call."""
    read_error: ReadError = error_from

    def __post_init__(self) -> None:
        if not isinstance(self.channel, MethodPathChannel):
            object.__setattr__(self, "channel", MethodPathChannel(self.channel))

    async def unary(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[Q, R]",
        request: Q,
        *,
        token: Callable[[], str],
        timeout_seconds: float,
    ) -> R:
        """Call `stub.Method` and return the response; the request of a client stream is
        an iterator.

        Raises MeshError if the call fails, and the exception of the iterator.
        """
        trace = self._trace(method)
        metadata = self._metadata(trace, token)
        status = "CANCELLED"
        answer: R
        try:
            answer = await self._answer(method, request, timeout=timeout_seconds, metadata=metadata)
            status = "OK"
        except PeerSilent:
            status = "UNAVAILABLE"
            raise PeerUnresponsive(self.name) from None
        except grpc.aio.AioRpcError as error:
            status = error.code().name
            raise self.read_error(self.name, error) from None
        finally:
            trace.end(status)
        return answer

    async def stream(
        self,
        method: "grpc.aio.UnaryStreamMultiCallable[Q, R]",
        request: Q,
        *,
        token: Callable[[], str],
        timeout_seconds: float,
        quiet_seconds: float = SILENT_SECONDS,
    ) -> AsyncGenerator[R, None]:
        """Yield the responses of `stub.Method`, under the rules of `unary`.

        Closing the generator cancels it. The probe looks at the replica if no response comes for
        `quiet_seconds`.
        """
        trace = self._trace(method)
        if self.probe is not None and self.probe.is_away:
            trace.end("UNAVAILABLE")
            raise PeerUnresponsive(self.name)
        status = "CANCELLED"
        try:
            call = method(request, timeout=timeout_seconds, metadata=self._metadata(trace, token))
            messages = call if self.probe is None else ProbedMessages(self.probe, call, quiet_seconds)
            try:
                async for message in messages:
                    yield message
                status = "OK"
            except PeerSilent:
                status = "UNAVAILABLE"
                raise PeerUnresponsive(self.name) from None
            except grpc.aio.AioRpcError as error:
                status = error.code().name
                raise self.read_error(self.name, error) from None
            finally:
                call.cancel()
        finally:
            trace.end(status)

    async def _answer(self, method: Any, request: Any, **options: Any) -> Any:
        if isinstance(request, AsyncIterator):
            if self.probe is None:
                return await call_client_stream(method, request, **options)
            return await call_client_stream_probed(self.probe, method, request, **options)
        if self.probe is None:
            return await method(request, **options)
        return await call_probed(self.probe, method, request, **options)

    def _trace(self, method: Any) -> TracedCall:
        return self.trace_call(self.name, method.path)

    def _metadata(self, trace: TracedCall, token: Callable[[], str]) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {token()}"), *self.headers, *trace.headers())


@asynccontextmanager
async def open_connection(
    name: str,
    target: str,
    tls: TlsFiles | ServerTls | None,
    options: Options,
    *,
    trace_call: TraceCall = untraced,
    headers: tuple[tuple[str, str], ...] = (),
    read_error: ReadError = error_from,
    report_silence: ReportSilence,
) -> AsyncIterator[Connection]:
    """Open a channel to `target` and close it at the end of the block.

    `target` is `host:port`, or `dns:///host:port` for all replicas behind a headless service. The
    channel connects at the first call, in plaintext without `tls`. A call fails at once if no
    replica accepts connections, and soon if none answers. A call that broke, or whose replica is
    silent, is repeated on another replica if its contract allows it.
    """
    channel = RenewableChannel(target, tls, options)
    probe = SilenceProbe(name, channel, report_silence)
    try:
        yield Connection(name, channel, probe, trace_call, headers, read_error)
    finally:
        await probe.close()
        await channel.close(None)
