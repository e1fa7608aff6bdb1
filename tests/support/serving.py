"""Serve services in the process of the test, over real gRPC with real tokens."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import MeshServer
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

S = TypeVar("S", bound=ProcessSettings)


def shared_settings(service: str, keys: Path) -> dict[str, Any]:
    """Return the settings that every service has in tests."""
    return {
        "jwks_file": keys / "jwks.json",
        "signing_key_file": keys / f"{service}.pem",
        "log_level": "error",
    }


@asynccontextmanager
async def served(
    service: str,
    settings: S,
    open_service: Callable[[Process, S], AbstractAsyncContextManager[MeshServer]],
    *,
    port: int = 0,
) -> AsyncIterator[str]:
    """Serve on loopback for the block, and yield `host:port`."""
    async with start_process(service, settings) as process, open_service(process, settings) as server:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        try:
            yield f"127.0.0.1:{bound}"
        finally:
            await server.stop(None)


@asynccontextmanager
async def caller_at(target: str, name: str) -> AsyncIterator[Peer]:
    """Open a channel for test code, which sets its tokens with `use_token`."""
    async with (
        start_process("test", ProcessSettings(log_level="error")) as process,
        open_peer(process, name, target) as peer,
    ):
        yield peer


def client_tokens(keys: Path) -> TokenMinter:
    """Return a minter for tokens of clients and operators."""
    return TokenMinter("client", keys / "client.pem")


def runner_tokens(keys: Path) -> TokenMinter:
    """Return a minter for tokens of runner processes."""
    return TokenMinter("runner", keys / "runner.pem")


async def until_open(port: int, *, within_seconds: float = 60.0) -> None:
    """Wait until the port of this machine accepts connections."""
    async with asyncio.timeout(within_seconds):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
