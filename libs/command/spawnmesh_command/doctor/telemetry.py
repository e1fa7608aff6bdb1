"""Check that the telemetry collector accepts spans."""

from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from spawnmesh_command.doctor.finding import Finding

_CALL_SECONDS = 3.0
_GRPC_PORT = 4317
_stub: Any = trace_service_pb2_grpc.TraceServiceStub  # The stub has no types.


async def check_telemetry(endpoint: str | None) -> Finding:
    """Export an empty list of spans, as processes export spans."""
    if endpoint is None:
        return Finding("telemetry", None, "not looked at: SPAWNMESH_OTLP_ENDPOINT is not set")
    try:
        async with _channel(endpoint) as channel:
            await _stub(channel).Export(trace_service_pb2.ExportTraceServiceRequest(), timeout=_CALL_SECONDS)
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            advice = (
                "correct the endpoint, or let the network through; runs do not need it, but leave no trace"
            )
            return Finding("telemetry", False, "the collector does not answer", advice)
        advice = "correct the endpoint: it must take OTLP over gRPC, for traces, without a header of its own"
        return Finding("telemetry", False, f"what answers there takes no spans: {error.code().name}", advice)
    return Finding("telemetry", True, "the collector takes spans")


def _channel(endpoint: str) -> grpc.aio.Channel:
    parts = urlsplit(endpoint)
    target = parts.netloc if parts.port else f"{parts.netloc}:{_GRPC_PORT}"
    if parts.scheme == "https":
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials())
    return grpc.aio.insecure_channel(target)
