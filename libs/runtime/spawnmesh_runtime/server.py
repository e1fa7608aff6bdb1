"""The gRPC server of a process: every RPC inside the same interceptors, health, reflection, and an orderly end."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import _async as _health
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from spawnmesh_core.cancellation import uninterrupted

from spawnmesh_runtime.call import Call, ServedMethod, Step
from spawnmesh_runtime.channel_options import server_options
from spawnmesh_runtime.credentials import server_credentials
from spawnmesh_runtime.interceptors.auth import authenticated_calls
from spawnmesh_runtime.interceptors.deadline import bounded_calls
from spawnmesh_runtime.interceptors.drain import Drain
from spawnmesh_runtime.interceptors.errors import Translate, typed_errors
from spawnmesh_runtime.interceptors.log import call_durations, logged_calls
from spawnmesh_runtime.interceptors.receive import Turn, received_in_turn
from spawnmesh_runtime.interceptors.trace import traced_calls
from spawnmesh_runtime.interceptors.validate import validated_calls
from spawnmesh_runtime.methods import PolicyMissing, policy_of, service_called
from spawnmesh_runtime.process import Process, keep_what_is_there, stop_signals
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenVerifier

_CLOSE_SECONDS = 1.0  # For handlers that were cut off to close their spans and write their log events.

_KEYS_AGAIN_SECONDS = 1.0

log = structlog.get_logger()


class MeshServer(grpc.aio.Server):
    """A grpc.aio server that surrounds each method of a service with the interceptors when the service is added.

    Adding a service raises PolicyMissing where a method of it has no policy. Health and reflection are open to everybody and not logged.
    """

    def __init__(self, process: Process, verifier: TokenVerifier, translate: Sequence[Translate]) -> None:
        self._process = process
        self._verifier = verifier
        self._translate = translate
        self._turns: dict[str, Turn] = {}
        self._durations = call_durations(process.metrics.meter)
        self._inner = grpc.aio.server(options=server_options(process.settings))
        self._services: list[str] = []
        self._health: Any = _health.HealthServicer()
        self.drain = Drain()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._inner)

    def receive_in_turn(self, methods: Iterable[str], turn: Turn) -> None:
        """Of these methods, as `<service>/<method>`, of services that are added from now on: a request is read, and takes memory here, only in
        its turn.
        """
        self._turns.update(dict.fromkeys(methods, turn))

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable["grpc.GenericRpcHandler[Any, Any]"]) -> None:
        """Generated code adds each service this way and by `add_registered_method_handlers`; the latter is what counts here."""
        for handler in generic_rpc_handlers:
            if not isinstance(handler, grpc.ServiceRpcHandler):
                raise PolicyMissing("a handler that names no service has no policy")

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        described = service_called(service_name).methods_by_name
        wrapped = {}
        for name, handler in method_handlers.items():
            method = ServedMethod(service_name, name, policy_of(described[name]), handler.request_streaming)
            turn = self._turns.get(f"{service_name}/{name}")
            wrapped[name] = _handler(handler, self._surrounded(method, handler, turn), reads_late=turn is not None)
        self._inner.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service_name, wrapped),))
        self._services.append(service_name)

    def _surrounded(self, method: ServedMethod, handler: Any, turn: Turn | None) -> Step:
        service = self._process.service
        step = validated_calls(_servicer(handler), method)
        if turn is not None:
            step = received_in_turn(step, turn)
        step = authenticated_calls(step, method, self._verifier)
        step = typed_errors(bounded_calls(step), service, self._translate)
        step = logged_calls(step, method, service, self._durations)
        return self.drain.counted_calls(traced_calls(step, method, self._process.tracer))

    def add_insecure_port(self, address: str) -> int:
        return self._inner.add_insecure_port(address)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        return self._inner.add_secure_port(address, server_credentials)

    async def start(self) -> None:
        await self._answer()
        for name in ("", *self._services):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._process.health.ready()

    async def start_alone(self) -> None:
        """As `start`, for a process that is not to be sent work yet: what is not served here is refused as if nobody were there."""
        await self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._answer(_NotYet())

    async def _answer(self, *rest: "grpc.GenericRpcHandler[Any, Any]") -> None:
        names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._inner)
        self._inner.add_generic_rpc_handlers(rest)
        await self._inner.start()

    async def stop(self, grace: float | None = None) -> None:
        await self._inner.stop(grace)

    async def drain_and_stop(self, grace_seconds: float) -> None:
        """Health turns to NOT_SERVING, callers are told to take another replica, and the running calls get the grace to end in.

        They are told at once: a connection that stays open is one that its client goes on sending to.
        """
        await self._process.health.leaving()
        await self._health.enter_graceful_shutdown()
        await self._inner.stop(grace_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.drain.idle()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        return await self._inner.wait_for_termination(timeout)


def build_server(
    process: Process, *, translate_errors: Sequence[Translate] = (), plugin: str | None = None
) -> MeshServer:
    """A server to which the generated `add_…_to_server` functions add services. Nothing is bound or started yet.

    Raises ValueError for a process that cannot verify tokens. `translate_errors` turn a driver's exceptions into refusals. With `plugin`, an
    endpoint, only tokens for the plugin there are taken, in place of those for the mesh.
    """
    if process.verifier is None:
        raise ValueError("a server needs jwks_file or jwks_url to verify tokens with")
    verifier = process.verifier if plugin is None else process.verifier.of_plugin(plugin)
    return MeshServer(process, verifier, tuple(translate_errors))


@asynccontextmanager
async def answering_alone(process: Process, add: Callable[[MeshServer], None]) -> AsyncIterator[None]:
    """Serves on `listen` what is added and nothing else, while the process waits for what it cannot work without. Health says NOT_SERVING.

    A port that cannot be had ends the process with one line and exit code 1.
    """
    server = build_server(process)
    add(server)
    _bind(process, server)
    await server.start_alone()
    try:
        yield
    finally:
        await server.stop(None)


async def run_until_stopped(
    process: Process, server: MeshServer, *, on_ready: Callable[[int], None] | None = None
) -> None:
    """Serves on `listen` until SIGTERM or SIGINT, then drains. `on_ready` is told the port once calls are answered.

    That begins when there are keys to verify callers with. A port that cannot be had ends the process with one line and exit code 1.
    """
    await _await_keys(process)
    port = _bind(process, server)
    await server.start()
    keep_what_is_there()
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
    """Returns when there are keys to verify tokens with, which a URL may not give at once."""
    verifier = process.verifier
    if verifier is None or await verifier.has_keys():
        return
    async with answering_alone(process, lambda _: None):
        while not await verifier.has_keys():  # noqa: ASYNC110 - nobody tells when a URL answers
            await asyncio.sleep(_KEYS_AGAIN_SECONDS)


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
    """Binds and lets go: the transport would say the same in many lines of its own."""
    family = socket.AF_INET6 if ":" in settings.listen_host else socket.AF_INET
    socket.create_server((settings.listen_host, settings.listen_port), family=family).close()


class _NotYet(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # The type has parameters for type checkers only.
    """Takes every RPC that no service of the server has."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(_request: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "this replica is not ready yet")


def _servicer(handler: Any) -> Step:
    behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

    async def unary(call: Call) -> Any:
        return await behavior(call.request, call.context)

    async def streaming(call: Call) -> None:
        # Pumped here and not by the transport: so the generator runs and is closed inside the interceptors, in one task.
        has_begun = False
        async with aclosing(behavior(call.request, call.context)) as messages:
            async for message in messages:
                if not has_begun:
                    # The transport would send it with the first message, and once more with a refusal that cuts that message off: then
                    # neither arrives, and the caller waits for ever.
                    await uninterrupted(call.context.send_initial_metadata(()))
                    has_begun = True
                await call.context.write(message)

    return streaming if handler.response_streaming else unary


def _handler(handler: Any, step: Step, *, reads_late: bool) -> "grpc.RpcMethodHandler[Any, Any]":
    """With `reads_late` the request is an iterator of one message: on the wire there is no difference, and the transport reads it when asked."""

    async def serve(request: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> Any:
        return await step(Call(request, context, dict(context.invocation_metadata() or ())))

    make: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming or reads_late, handler.response_streaming]
    wrapped: grpc.RpcMethodHandler[Any, Any] = make(
        serve,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
    return wrapped
