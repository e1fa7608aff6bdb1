"""A peer on a busy machine accepts the connection and sends its first bytes late."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import HookHandlerServiceStub
from spawnmesh_runtime.impersonation import impersonate

SLOW_SECONDS = 1.5


async def test_a_peer_that_is_slow_to_greet_is_waited_for(
    serve: Callable[..., Awaitable[Any]], peer_of: Any, request_with: Any
) -> None:
    served = await serve()
    async with slow_to_greet(served.port) as target, peer_of(target) as peer:
        with impersonate("acme"):
            answer = await peer.unary(
                HookHandlerServiceStub(peer.channel).HandleBeforeSpawn, request_with(), timeout_seconds=60
            )
    assert answer.decision.HasField("allow")
    assert len(served.plugin.seen) == 1


@asynccontextmanager
async def slow_to_greet(port: int) -> AsyncIterator[str]:
    """Forward to the port, and delay the first bytes of the server."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause: float) -> None:
        await asyncio.sleep(pause)
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async def lead(caller: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(
                copy(caller, writer, 0), copy(reader, back, SLOW_SECONDS), return_exceptions=True
            )
        finally:
            writer.close()
            back.close()

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
