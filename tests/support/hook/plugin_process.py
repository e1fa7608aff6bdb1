"""Runs plugins as users do, with `spawnmesh hooks serve`."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from spawnmesh_devstack.ports import free_ports

from tests.support.commands import SCRIPT
from tests.support.forked_process import start_forked
from tests.support.forking import ForkServer


@asynccontextmanager
async def serving(
    fork_server: ForkServer,
    module: str,
    keys: Path,
    *tenant_ids: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    port: int | None = None,
) -> AsyncIterator[str]:
    """Serve the module's handlers for these tenants, by default for all. Give the endpoint.

    The process is killed after the block.
    """
    port = port or free_ports(1)[0]
    for_tenants = [word for one in tenant_ids for word in ("--for-tenant", one)] or ["--for-all-tenants"]
    options = ("--listen", f"127.0.0.1:{port}", "--jwks", str(keys / "jwks.json"), *for_tenants)
    process = await start_forked(
        fork_server, [str(SCRIPT), "hooks", "serve", module, *options], env or {}, cwd
    )
    try:
        async with asyncio.timeout(30):
            while not (line := (await process.stdout.readline()).decode()).startswith("serving "):
                assert line, "it ended before it served"
        yield line.rpartition(", as ")[2].strip()
    finally:
        process.kill()
        await process.wait()
