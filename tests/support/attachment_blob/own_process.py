"""The service in a process of its own, whose memory is observed."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import psutil
from spawnmesh_core.errors import MeshError
from spawnmesh_devstack.members import base_environment
from spawnmesh_devstack.ports import free_port_pairs

from tests.support.attachment_blob.fixtures import BlobService, Tenant
from tests.support.serving import caller_at


@asynccontextmanager
async def own_process(service: BlobService) -> AsyncIterator[tuple[BlobService, psutil.Process]]:
    """Start the service again, as a process with the same settings."""
    (port,) = free_port_pairs(1)
    settings = service.settings
    given = {
        name: str(value.get_secret_value() if hasattr(value, "get_secret_value") else value)
        for name, value in settings
        if name in settings.model_fields_set
    }
    given["listen"] = f"127.0.0.1:{port}"
    env = {
        **base_environment(),
        **{f"ATTACHMENT_BLOB_{name.upper()}": value for name, value in given.items()},
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "spawnmesh_attachment_blob", "serve", env=env, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with caller_at(given["listen"], "attachment-blob") as peer:
            yield replace(service, peer=peer), psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def until_prepared(tenant: Tenant, max_bytes: int) -> None:
    """Prepare the tenant once the process answers. `max_bytes` limits its files and sets."""
    async with asyncio.timeout(60):
        while True:
            with suppress(MeshError):
                await tenant.prepare(max_file_bytes=max_bytes, max_total_bytes=max_bytes)
                return
            await asyncio.sleep(0.05)


async def highest_rss(process: psutil.Process, done: asyncio.Event) -> int:
    """Return the largest resident set size, in bytes, until `done` is set."""
    highest = 0
    while not done.is_set():
        highest = max(highest, process.memory_info().rss)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await done.wait()
    return highest
