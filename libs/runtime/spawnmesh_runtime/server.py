"""The gRPC server of a process: interceptors, health, reflection and graceful shutdown."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any

import grpc
import grpc.aio
import structlog
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from spawnmesh_calls.contracts import service_descriptor
from spawnmesh_core.audit_event import AuditEvent

from spawnmesh_runtime.call import ServedMethod, Step
from spawnmesh_runtime.credentials import server_credentials
from spawnmesh_runtime.handlers import servicer_step, wire_handler
from spawnmesh_runtime.health import HealthServicer
from spawnmesh_runtime.interceptors.admission import Admit, admitted_calls
from spawnmesh_runtime.interceptors.audit import ResourceNames, audited_calls, named_resources
from spawnmesh_runtime.interceptors.auth import authenticated_calls, authorized_calls
from spawnmesh_runtime.interceptors.deadline import bounded_calls
from spawnmesh_runtime.interceptors.drain import Drain
from spawnmesh_runtime.interceptors.errors import Translate, typed_errors
from spawnmesh_runtime.interceptors.limits import limited_calls, rated_calls
from spawnmesh_runtime.interceptors.log import call_durations, logged_calls
from spawnmesh_runtime.interceptors.observe import observed_calls
from spawnmesh_runtime.interceptors.pages import signed_pages
from spawnmesh_runtime.interceptors.read import decode_with, read_calls
from spawnmesh_runtime.interceptors.trace import traced_calls
from spawnmesh_runtime.interceptors.validate import decode_valid
from spawnmesh_runtime.interceptors.watches import counted_watches, open_watches
from spawnmesh_runtime.methods import PolicyMissing, policy_of
from spawnmesh_runtime.open_services import OpenServices
from spawnmesh_runtime.process import Process, stop_signals
from spawnmesh_runtime.rpc_class import RpcClass
from spawnmesh_runtime.server_options import server_options
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenVerifier
from spawnmesh_runtime.workarounds.gc_freeze import freeze_startup_objects

# For cancelled handlers to close their spans and write their log events.
_CLOSE_SECONDS = 1.0

_KEYS_RETRY_SECONDS = 1.0

log = structlog.get_logger()


class MeshServer(grpc.aio.Server):
    """A grpc.aio server that adds the interceptors to each method of a service.

    Adding a service raises PolicyMissing if one of its methods has no policy, and SystemExit with
    one line if one of them lists and the process has no signing key for page tokens. Health and
    reflection need no token, and only their refused calls are logged.
    """

    def __init__(
        self,
        process: Process,
        verifier: TokenVerifier,
        translate: Sequence[Translate],
        record: Callable[[AuditEvent], None] | None = None,
    ) -> None:
        self._process = process
        self._verifier = verifier
        self._translate = translate
        self._record = record
        self._admissions: dict[str, Admit] = {}
        self._on_drain: list[Callable[[], None]] = []
        self._durations = call_durations(process.metrics.meter)
        self._watches = open_watches(process.metrics.meter)
        self._inner = grpc.aio.server(options=server_options(process.settings))
        self._services: list[str] = []
        self._wrapped: dict[str, dict[str, Any]] = {}
        self._health = HealthServicer()
        self.drain = Drain()
        self._open = OpenServices(
            self._inner, process.service, process.settings, self._durations, process.denied
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._open)
        process.health.report_dependencies_to(self._health)

    def admit_before_read(self, methods: Iterable[str], admit: Admit) -> None:
        """Admit calls of these methods before their requests are read and take memory.

        `methods` are `<service>/<method>` of services that are added later.
        """
        self._admissions.update(dict.fromkeys(methods, admit))

    def on_drain(self, end: Callable[[], None]) -> None:
        """Call `end` when the server begins to drain, to end streams that would never end."""
        self._on_drain.append(end)

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable["grpc.GenericRpcHandler[Any, Any]"]
    ) -> None:
        """Check the handlers.

        Generated code also calls `add_registered_method_handlers`, which adds them.
        """
        for handler in generic_rpc_handlers:
            if not isinstance(handler, grpc.ServiceRpcHandler):
                raise PolicyMissing("a handler that names no service has no policy")

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        described = service_descriptor(service_name).methods_by_name
        wrapped = {}
        for name, handler in method_handlers.items():
            method = ServedMethod(service_name, name, policy_of(described[name]))
            wrapped[name] = wire_handler(handler, self._intercepted(method, handler, described[name]))
        self._wrapped[service_name] = wrapped
        self._serve(service_name, wrapped)

    def serve_also_as(self, alias: str, service_name: str) -> None:
        """Serve a service that was added under the name of another contract too, whose messages
        have the same bytes. Policies and rules are those of the service.
        """
        self._serve(alias, self._wrapped[service_name])

    def _serve(self, name: str, wrapped: dict[str, Any]) -> None:
        self._inner.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, wrapped),))
        self._services.append(name)

    def _intercepted(self, method: ServedMethod, handler: Any, described: MethodDescriptor) -> Step:
        process, path = self._process, f"{method.service}/{method.name}"
        names = ResourceNames(described, method.policy.audit)
        decode = decode_valid(decode_with(handler.request_deserializer), described.input_type)
        step = servicer_step(handler, names.note_response if method.policy.audit.is_recorded else None)
        if "page_token" in described.input_type.fields_by_name:
            step = signed_pages(step, process)
        step = named_resources(step, names, client_streaming=handler.request_streaming)
        step = read_calls(
            step,
            decode,
            client_streaming=handler.request_streaming,
            timeout_seconds=process.settings.message_timeout_seconds,
            memory=process.request_memory,
        )
        admit = self._admissions.get(path)
        if admit is not None:
            step = admitted_calls(step, admit)
        if method.policy.ends_with_token:
            step = counted_watches(step, path, self._watches)
        step = limited_calls(step, method.policy, process.call_limits)
        # A stream of new events ends with its token, or with its connection.
        is_endless = method.policy.ends_with_token and handler.response_streaming
        max_seconds = inf if is_endless else process.settings.max_call_seconds
        is_stream = handler.request_streaming or handler.response_streaming
        step = authorized_calls(step, method, process.revoked, is_stream=is_stream)
        step = bounded_calls(step, max_seconds)
        step = typed_errors(step, process.service, self._translate)
        step = audited_calls(step, method, self._record)
        step = logged_calls(step, method, process.service, self._durations)
        step = traced_calls(step, method, process.tracer, process.settings.trace_parent_issuers)
        rpc_class = method.policy.rpc_class or RpcClass.WRITE
        step = rated_calls(step, rpc_class, process.call_limits, method.policy, process.revoked)
        step = observed_calls(step, process.denied, method.policy, process.revoked)
        return self.drain.counted_calls(authenticated_calls(step, self._verifier))

    def add_insecure_port(self, address: str) -> int:
        return self._inner.add_insecure_port(address)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        return self._inner.add_secure_port(address, server_credentials)

    async def start(self) -> None:
        await self._start()
        for name in ("", *self._services):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._process.health.ready()

    async def start_not_ready(self) -> None:
        """Start with health NOT_SERVING.

        RPCs that the server does not have are refused with UNAVAILABLE.
        """
        await self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._start(_NotReadyHandler())

    async def _start(self, *rest: "grpc.GenericRpcHandler[Any, Any]") -> None:
        names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            reflection.aio.ReflectionServicer(names),  # type: ignore[attr-defined]  # Not in the stubs.
            self._open,
        )
        self._inner.add_generic_rpc_handlers(rest)
        await self._inner.start()

    async def stop(self, grace: float | None = None) -> None:
        await self._inner.stop(grace)

    async def drain_and_stop(self, grace_seconds: float) -> None:
        """Set health to NOT_SERVING, close the connections and give running calls the grace to end.

        Connections are closed at once (GOAWAY): a client keeps sending on a connection that stays
        open.
        """
        await self._process.health.not_ready()
        await self._health.enter_graceful_shutdown()
        for end in self._on_drain:
            end()
        await self._inner.stop(grace_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.drain.idle()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        return await self._inner.wait_for_termination(timeout)


def build_server(
    process: Process,
    *,
    translate_errors: Sequence[Translate] = (),
    record: Callable[[AuditEvent], None] | None = None,
    plugin: str | None = None,
) -> MeshServer:
    """Return a server for the generated `add_…_to_server` functions. It is not bound or started.

    `translate_errors` turn exceptions of drivers into refusals. `record` gets each event of the
    audit log, which is in the log of the process as well; it must not wait. If `plugin`, an
    endpoint, is given, the server accepts only tokens for the plugin at that endpoint. Raises
    ValueError if the process cannot verify tokens.
    """
    if process.verifier is None:
        raise ValueError("a server needs jwks_file or jwks_url to verify tokens with")
    verifier = process.verifier if plugin is None else process.verifier.for_plugin(plugin)
    return MeshServer(process, verifier, tuple(translate_errors), record)


@asynccontextmanager
async def serve_not_ready(process: Process, add: Callable[[MeshServer], None]) -> AsyncIterator[None]:
    """Serve only the services that `add` adds, while the process waits for a dependency.

    Health is NOT_SERVING. Raises SystemExit with one line and exit code 1 if `listen` cannot be
    bound.
    """
    server = build_server(process)
    add(server)
    _bind(process, server)
    await server.start_not_ready()
    try:
        async with process.dependencies.periodic():
            yield
    finally:
        await server.stop(None)


async def run_until_stopped(
    process: Process, server: MeshServer, *, on_ready: Callable[[int], None] | None = None
) -> None:
    """Serve on `listen` until SIGTERM or SIGINT, then drain.

    Serving starts when the keys to verify callers are available; then `on_ready` receives the port.
    Raises SystemExit with one line and exit code 1 if the port cannot be bound.
    """
    await _await_keys(process)
    port = _bind(process, server)
    await server.start()
    freeze_startup_objects()
    async with process.dependencies.periodic():
        await _serve_until_stopped(process, server, port, on_ready)


async def _serve_until_stopped(
    process: Process, server: MeshServer, port: int, on_ready: Callable[[int], None] | None
) -> None:
    with stop_signals() as stop:
        try:
            log.info("serving", port=port)
            if on_ready is not None:
                on_ready(port)
            await stop.wait()
            log.info("draining")
        except BaseException:
            await server.stop(None)
            raise
        await server.drain_and_stop(process.settings.drain_grace_seconds)
        log.info("stopped")


async def _await_keys(process: Process) -> None:
    """Wait until there are keys to verify tokens; a URL may not answer at once."""
    verifier = process.verifier
    if verifier is None or await verifier.has_keys():
        return
    async with serve_not_ready(process, lambda _: None):
        while not await verifier.has_keys():  # noqa: ASYNC110 - a URL sends no event
            await asyncio.sleep(_KEYS_RETRY_SECONDS)


def _bind(process: Process, server: MeshServer) -> int:
    settings = process.settings
    try:
        _try_port(settings)
        if process.tls is None:
            return server.add_insecure_port(settings.listen)
        return server.add_secure_port(settings.listen, server_credentials(process.tls))
    except (OSError, RuntimeError) as error:
        busy = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "the port is in use" if busy else "the address cannot be bound"
        raise SystemExit(f"{process.service}: cannot listen on {settings.listen}: {why}") from None


def _try_port(settings: ProcessSettings) -> None:
    """Bind and close the port: grpc would report a failure with many log lines."""
    family = socket.AF_INET6 if ":" in settings.listen_host else socket.AF_INET
    socket.create_server((settings.listen_host, settings.listen_port), family=family).close()


# It is generic only in the stubs.
class _NotReadyHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Handle every RPC that no service of the server has."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        return grpc.stream_unary_rpc_method_handler(_refuse)  # The request is not read.


async def _refuse(_messages: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "this replica is not ready yet")
