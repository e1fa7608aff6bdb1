"""Run the service as a process of its own and watch its memory."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
from spawnmesh_devstack.members import base_environment
from spawnmesh_devstack.ports import free_port_pairs

from tests.support.serving import caller_at
from tests.support.transcript.fixtures import Service

MIB = 1024 * 1024


@asynccontextmanager
async def own_process(
    service: Service, keys: Path, **more: str
) -> AsyncIterator[tuple[Service, psutil.Process]]:
    """Start the same service as a process of its own, with these settings."""
    (port,) = free_port_pairs(1)
    target = f"127.0.0.1:{port}"
    given = {
        "database_url": service.dsn.app,
        "jwks_file": str(keys / "jwks.json"),
        "signing_key_file": str(keys / "transcript.pem"),
        "log_level": "error",
        "listen": target,
        **more,
    }
    env = {**base_environment(), **{f"TRANSCRIPT_{name.upper()}": value for name, value in given.items()}}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "spawnmesh_transcript", "serve", env=env, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with caller_at(target, "transcript") as peer:
            yield replace(service, peer=peer, target=target), psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def highest_rss(process: psutil.Process, done: asyncio.Event) -> int:
    highest = 0
    while not done.is_set():
        highest = max(highest, process.memory_info().rss)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await done.wait()
    return highest
