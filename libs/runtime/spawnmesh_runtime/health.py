"""Health on a port of its own, in plain text and for health alone: a kubelet asks there, also where the service itself wants certificates."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from grpc_health.v1 import _async as _health
from grpc_health.v1 import health_pb2, health_pb2_grpc

LIVE = "live"
"""SERVING for as long as the event loop turns; the service without a name is SERVING while the process is to be sent work."""

_STATUS = health_pb2.HealthCheckResponse


class Health:
    """What a process says of itself. It begins live and not ready."""

    def __init__(self) -> None:
        self.servicer: Any = _health.HealthServicer()

    async def ready(self) -> None:
        """From now on work may be sent here."""
        await self.servicer.set("", _STATUS.SERVING)

    async def leaving(self) -> None:
        """From now on work is to be sent elsewhere."""
        await self.servicer.set("", _STATUS.NOT_SERVING)


@asynccontextmanager
async def open_health(service: str, address: str | None) -> AsyncIterator[Health]:
    """Answers health checks on `host:port` until the block ends; without an address nobody is answered.

    Ends the process with one line where the address cannot be had.
    """
    health = Health()
    await health.servicer.set(LIVE, _STATUS.SERVING)
    await health.leaving()
    if not address:
        yield health
        return
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer, server)
    try:
        server.add_insecure_port(address)
    except (OSError, RuntimeError) as error:
        busy = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "the port is in use" if busy else "the address cannot be bound"
        raise SystemExit(f"{service}: cannot answer health checks on {address}: {why}") from None
    await server.start()
    try:
        yield health
    finally:
        await server.stop(None)
