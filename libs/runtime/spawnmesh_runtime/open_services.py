"""Services that need no token: health and reflection."""

from collections.abc import Iterable, Mapping
from typing import Any

import grpc
import grpc.aio
from opentelemetry.metrics import Histogram

from spawnmesh_runtime.call import Step
from spawnmesh_runtime.handlers import servicer_step, wire_handler
from spawnmesh_runtime.interceptors.deadline import bounded_calls
from spawnmesh_runtime.interceptors.errors import typed_errors
from spawnmesh_runtime.interceptors.log import logged_refusals
from spawnmesh_runtime.interceptors.read import decode_with, read_calls
from spawnmesh_runtime.settings import ProcessSettings

# A watch of the health ends, too: its caller needs no token. It can watch again.
_LONGEST_SECONDS = 300.0


class OpenServices:
    """The argument for the generated `add_…_to_server` functions of these services.

    Their calls have typed errors. Only refused calls are logged and measured: probes are frequent.
    """

    def __init__(
        self, server: grpc.aio.Server, service: str, settings: ProcessSettings, durations: Histogram
    ) -> None:
        self._server = server
        self._service = service
        self._message_seconds = settings.message_timeout_seconds
        self._max_seconds = min(settings.max_call_seconds, _LONGEST_SECONDS)
        self._durations = durations

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
        decode = decode_with(handler.request_deserializer)
        step = read_calls(
            step, decode, client_streaming=handler.request_streaming, timeout_seconds=self._message_seconds
        )
        step = typed_errors(bounded_calls(step, self._max_seconds), self._service, ())
        return logged_refusals(step, path, self._service, self._durations)
