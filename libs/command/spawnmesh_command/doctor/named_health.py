"""Check dependencies without an operator's key, by the health services of their names."""

import asyncio
from collections.abc import Collection

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.doctor.dependencies import POSTGRESQL
from spawnmesh_command.doctor.finding import Finding
from spawnmesh_command.endpoints import SERVICES

_CALL_SECONDS = 3.0
_NAMES = (POSTGRESQL, "s3", "sts", *SERVICES)
_STATES = {
    health_pb2.HealthCheckResponse.SERVING: (True, "up", ""),
    health_pb2.HealthCheckResponse.NOT_SERVING: (
        False,
        "down",
        "its log says why in dependency_down, and so does doctor with a signing key of this mesh",
    ),
}


async def check_named_health(mesh: WireMesh, services: Collection[Finding]) -> list[Finding]:
    """Return a finding for each dependency that one replica of each service reports."""
    serving = [service.name for service in services if service.ok]
    states = await asyncio.gather(
        *(_state(mesh.service(service).channel, name) for service in serving for name in _NAMES)
    )
    titles = [f"{service}: {name}" for service in serving for name in _NAMES]
    return [
        Finding(title, *_STATES[state])
        for title, state in zip(titles, states, strict=True)
        if state in _STATES
    ]


async def _state(channel: grpc.aio.Channel, name: str) -> int | None:
    """Return the status; None if the service has no such dependency, or does not answer."""
    request = health_pb2.HealthCheckRequest(service=name)
    try:
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=_CALL_SECONDS)
    except grpc.aio.AioRpcError:
        return None
    status: int = answer.status
    return status
