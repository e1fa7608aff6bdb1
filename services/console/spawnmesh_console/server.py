"""The HTTP server of the console."""

import asyncio
import errno
import socket

import structlog
import uvicorn
from spawnmesh_runtime.health import Health
from spawnmesh_runtime.settings import address_parts
from starlette.types import ASGIApp

from spawnmesh_console.settings import ConsoleSettings

log = structlog.get_logger()

_MAX_CONNECTIONS = 800  # Each is a file; many machines give a process 1,024. Live pages hold one each.
_IDLE_SECONDS = 5
_MAX_HEADER_BYTES = 32 * 1024  # Cookies of two consoles on one machine have room.


async def serve_until_stopped(app: ASGIApp, settings: ConsoleSettings, health: Health) -> None:
    """Serve on `listen` until SIGTERM or SIGINT; then give running requests their grace and end
    streams.

    With too many connections, requests are answered 503. A connection that sends no request, or
    half of its headers, stays until its other end closes it: a proxy in front bounds that.

    Raises SystemExit with one line if the port cannot be bound.
    """
    bound = _bound(settings.listen)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        http="h11",
        lifespan="off",
        ws="none",
        proxy_headers=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_IDLE_SECONDS,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_graceful_shutdown=max(1, round(settings.drain_grace_seconds)),
    )
    server = uvicorn.Server(config)
    log.info("serving", port=bound.getsockname()[1])
    await health.ready()
    try:
        await server.serve(sockets=[bound])
    finally:
        await asyncio.shield(health.not_ready())
        log.info("stopped")


def _bound(listen: str) -> socket.socket:
    host, port = address_parts(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        why = "the port is in use" if error.errno == errno.EADDRINUSE else "the address cannot be bound"
        raise SystemExit(f"console: cannot serve on {listen}: {why}") from None
    return bound
