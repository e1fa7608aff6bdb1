"""Wait until a process is ready, checked from outside as its users would."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from datetime import datetime
from functools import partial

import grpc
import grpc.aio
import psycopg
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spawnmesh_devstack.ports import LOOPBACK
from spawnmesh_devstack.processes import ChildProcess, until_ready

_PROBE_SECONDS = 1.0
_START_SECONDS = 100.0  # All of a mesh can start at once, on two cores that other programs use too.
# By default, gRPC waits a second and more before it reconnects. `min` is the time a server has to
# greet.
_RECONNECT = [
    (f"grpc.{name}_reconnect_backoff_ms", ms) for name, ms in (("initial", 50), ("max", 50), ("min", 5_000))
]


async def until_serving(process: ChildProcess, port: int) -> None:
    """Wait for the gRPC health check to say SERVING. Raises StartFailed."""
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}", options=_RECONNECT) as channel:
        await until_ready(process, lambda: _serves(channel), _START_SECONDS)


async def until_dependencies_serve(process: ChildProcess, port: int, names: Collection[str]) -> None:
    """Wait until the process says SERVING for each of these dependencies that it has.

    It connects to the others when it starts, and fails calls until it tries again. Raises
    StartFailed.
    """
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}", options=_RECONNECT) as channel:
        for name in names:
            await until_ready(process, partial(_serves_if_known, channel, name), _START_SECONDS)


async def until_listening(process: ChildProcess, port: int) -> None:
    """Wait for the port to accept connections. Raises StartFailed."""
    await until_ready(process, lambda: _listens(port), _START_SECONDS)


async def until_working(process: ChildProcess, dsn: str, since: datetime) -> None:
    """Wait for a worker of the session service's queue that started after `since`, by the database
    clock. Raises StartFailed.
    """
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await until_ready(process, _works(connection, since), _START_SECONDS)


async def _serves(channel: grpc.aio.Channel) -> bool:
    try:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=_PROBE_SECONDS, wait_for_ready=True
        )
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def _serves_if_known(channel: grpc.aio.Channel, dependency: str) -> bool:
    request = health_pb2.HealthCheckRequest(service=dependency)
    try:
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=_PROBE_SECONDS)
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.NOT_FOUND
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def _listens(port: int) -> bool:
    with suppress(OSError):
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True
    return False


def _works(
    connection: psycopg.AsyncConnection[tuple[object, ...]], since: datetime
) -> Callable[[], Awaitable[bool]]:
    statement = "select exists (select from session._spawnmesh_worker where seen_time > %s)"

    async def probe() -> bool:
        row = await (await connection.execute(statement, (since,))).fetchone()
        return row is not None and bool(row[0])

    return probe
