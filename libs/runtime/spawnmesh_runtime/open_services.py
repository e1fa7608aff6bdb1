"""Services that need no token: health and reflection."""

from collections.abc import Iterable, Mapping
from typing import Any

import grpc
import grpc.aio
from opentelemetry.metrics import Histogram
from spawnmesh_core.errors import invalid

from spawnmesh_runtime.call import Call, Step
from spawnmesh_runtime.handlers import servicer_step, wire_handler
from spawnmesh_runtime.interceptors.deadline import bounded_calls
from spawnmesh_runtime.interceptors.errors import typed_errors
from spawnmesh_runtime.interceptors.log import logged_refusals
from spawnmesh_runtime.interceptors.observe import DeniedCalls
from spawnmesh_runtime.interceptors.read import Decode, decode_with, read_calls
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy
from spawnmesh_runtime.settings import ProcessSettings

MAX_REQUEST_BYTES = 4096
"""A larger request is refused before it is decoded. The names in requests are short."""

MAX_OPEN_STREAMS = 1000
"""Watches of the health and streams of reflection at one port, at most half of one address."""

# A watch of the health ends, too: its caller needs no token. It can watch again.
_LONGEST_SECONDS = 300.0
# A part of a message is kept until the rest of it comes.
_MESSAGE_SECONDS = 2.0


class OpenServices:
    """The argument for the generated `add_…_to_server` functions of these services, at one port.

    Their calls have typed errors. Only refused calls are measured, and logged as the budget of
    `denied` allows: probes are frequent. A caller holds little memory, and not for long:

    - It sends a whole message within two seconds, or within the `message_timeout_seconds` of the
      settings if these are less.
    - A message has at most MAX_REQUEST_BYTES.
    - At most MAX_OPEN_STREAMS calls stream their responses. Further ones are refused as
      POOL_EXHAUSTED.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        service: str,
        settings: ProcessSettings,
        durations: Histogram,
        denied: DeniedCalls,
    ) -> None:
        self._server = server
        self._service = service
        self._message_seconds = min(settings.message_timeout_seconds, _MESSAGE_SECONDS)
        self._max_seconds = min(settings.max_call_seconds, _LONGEST_SECONDS)
        self._durations = durations
        self._denied = denied
        self._streams = FairLimiter(
            LimiterPolicy(
                "streams without a token",
                "too many callers watch the health or use the reflection of this process; call again later",
                MAX_OPEN_STREAMS,
                max_waiting=0,
                retry_after_seconds=5.0,
            )
        )

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable["grpc.GenericRpcHandler[Any, Any]"]
    ) -> None:
        """Do nothing: generated code also calls `add_registered_method_handlers`."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        wired = {
            name: wire_handler(handler, self._intercepted(f"{service_name}/{name}", handler))
            for name, handler in method_handlers.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service_name, wired),))

    def _intercepted(self, path: str, handler: Any) -> Step:
        step = servicer_step(handler)
        if handler.response_streaming:
            step = _limited_streams(step, self._streams)
        decode = _decode_small(decode_with(handler.request_deserializer))
        step = read_calls(
            step, decode, client_streaming=handler.request_streaming, timeout_seconds=self._message_seconds
        )
        step = typed_errors(bounded_calls(step, self._max_seconds), self._service, ())
        return logged_refusals(step, path, self._service, self._durations, self._denied)


def _limited_streams(inner: Step, streams: FairLimiter) -> Step:
    """Hold a place for each call, by the address of its connection."""

    async def step(call: Call) -> object:
        address, _, _port = call.context.peer().rpartition(":")
        async with streams.hold(address):
            return await inner(call)

    return step


def _decode_small(decode: Decode) -> Decode:
    """Return a decoder that refuses messages of more than MAX_REQUEST_BYTES."""

    def decode_small(data: bytes, call: Call) -> Any:
        if len(data) > MAX_REQUEST_BYTES:
            raise invalid("request", f"has more than {MAX_REQUEST_BYTES} bytes")
        return decode(data, call)

    return decode_small
