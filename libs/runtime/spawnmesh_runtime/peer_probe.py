"""Probe whether a service of the mesh serves, as a dependency of this process."""

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawnmesh_core.dependency_watch import DependencyDown, DependencyFault

_ANSWER_SECONDS = 1.5
_FAULTS = {
    grpc.StatusCode.UNAVAILABLE: DependencyFault.UNREACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: DependencyFault.TIMEOUT,
}


async def check_peer(channel: grpc.aio.Channel) -> None:
    """Make a health check, and a second one if it fails: round robin makes it at another replica.

    Raises DependencyDown if both fail. One lost replica is no lost service.
    """
    try:
        await _check(channel)
    except DependencyDown:
        await _check(channel)


async def _check(channel: grpc.aio.Channel) -> None:
    check = health_pb2_grpc.HealthStub(channel).Check
    try:
        answer = await check(health_pb2.HealthCheckRequest(), timeout=_ANSWER_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise DependencyDown(_FAULTS.get(error.code(), DependencyFault.FAILED)) from None
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise DependencyDown(DependencyFault.NOT_SERVING)
