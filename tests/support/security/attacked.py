"""A server with every RPC of the contracts, whose servicers only record that a message reached them."""

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_core.audit_event import AuditEvent
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.interceptors.admission import Admit
from spawnmesh_runtime.interceptors.observe import DeniedCalls
from spawnmesh_runtime.jwks import JwksFile
from spawnmesh_runtime.metrics import SCOPE, Metrics
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter, TokenVerifier

from tests.support.captured_logs import captured_events


@dataclass
class Attacked:
    """The server, its spans and log events, and the RPCs whose servicers a message reached."""

    server: MeshServer
    process: Process
    keys: Path
    spans: InMemorySpanExporter
    name: str
    captured: list[MutableMapping[str, Any]]
    reached: list[str]
    measurements: InMemoryMetricReader
    target: str = ""

    @property
    def events(self) -> list[MutableMapping[str, Any]]:
        """The events of this server. A call of an earlier one may end during this test."""
        return [event for event in self.captured if event.get("service") == self.name]

    async def settled(self) -> None:
        """Wait until the running calls have written their spans, log events and measurements."""
        async with asyncio.timeout(60):
            await self.server.drain.idle()

    def measured(self) -> dict[tuple[str, str], int]:
        """Return the number of calls by method and reason that are in the metrics."""
        data = self.measurements.get_metrics_data()
        points = [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "rpc.server.call.duration"
            for point in metric.data.data_points
        ]
        return {_labels(point): point.count for point in points if isinstance(point, HistogramDataPoint)}


def _labels(point: HistogramDataPoint) -> tuple[str, str]:
    named = dict(point.attributes or {})
    return str(named["rpc.method"]), str(named.get("error.type", ""))


@asynccontextmanager
async def open_attacked(
    keys: Path,
    *,
    verifier: TokenVerifier | None = None,
    admit: Admit | None = None,
    record: Callable[[AuditEvent], None] | None = None,
    denied: DeniedCalls | None = None,
    **settings: Any,
) -> AsyncIterator[Attacked]:
    """Serve every RPC in this process. With `admit`, it admits the calls before they are read."""
    spans, measurements, reached = InMemorySpanExporter(), InMemoryMetricReader(), list[str]()
    tracing, metering = TracerProvider(shutdown_on_exit=False), MeterProvider([measurements])
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    name = f"attacked-{uuid4().hex}"
    process = Process(
        name,
        ProcessSettings(**settings),
        TokenMinter("session", keys / "session.pem"),
        verifier or TokenVerifier(JwksFile(keys / "jwks.json")),
        tracing.get_tracer("attacked"),
        Metrics(metering.get_meter(SCOPE)),
        denied=denied or DeniedCalls(),
    )
    with captured_events() as events:
        server = build_server(process, record=record)
        if admit is not None:
            names = [
                f"{service.full_name}/{one.name}" for service in mesh_services() for one in service.methods
            ]
            server.admit_before_read(names, admit)
        for service in mesh_services():
            handlers = {method.name: _handler(method, reached) for method in service.methods}
            server.add_registered_method_handlers(service.full_name, handlers)
        attacked = Attacked(server, process, keys, spans, name, events, reached, measurements)
        attacked.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield attacked
        finally:
            await server.stop(None)
            metering.shutdown()


def _handler(method: MethodDescriptor, reached: list[str]) -> "grpc.RpcMethodHandler[Any, Any]":
    """Return a handler as generated code makes it."""

    async def servicer(request: Any, context: Any) -> Any:
        if method.client_streaming:
            async for _ in request:
                pass
        reached.append(method.full_name)
        raise MeshError(Reason.NOT_FOUND, "the call reached its servicer")

    make: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    handler: grpc.RpcMethodHandler[Any, Any] = make(
        servicer,
        request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
        response_serializer=message_factory.GetMessageClass(method.output_type).SerializeToString,
    )
    return handler
