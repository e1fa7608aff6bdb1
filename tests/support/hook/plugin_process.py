"""Runs plugins as users do, with `spawnmesh hooks serve`."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.ports import free_ports

from tests.support.commands import SCRIPT
from tests.support.forked_process import ForkedProcess, start_forked


@dataclass(frozen=True, slots=True)
class PluginProcess:
    """A plugin that serves at the endpoint."""

    endpoint: str
    process: ForkedProcess

    def pause(self) -> None:
        """Stop the process: its connections stay open, and nothing is answered."""
        self.process.send_signal(SIGSTOP)

    def go_on(self) -> None:
        """Let the process run again."""
        self.process.send_signal(SIGCONT)


@asynccontextmanager
async def serving(
    fork_server: ForkServer, module: str, keys: Path, *tenant_ids: str, **more: Any
) -> AsyncIterator[str]:
    """Serve the module like `plugin_process`. Give the endpoint."""
    async with plugin_process(fork_server, module, keys, *tenant_ids, **more) as plugin:
        yield plugin.endpoint


@asynccontextmanager
async def plugin_process(
    fork_server: ForkServer,
    module: str,
    keys: Path,
    *tenant_ids: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    port: int | None = None,
) -> AsyncIterator[PluginProcess]:
    """Serve the module's handlers for these tenants, by default for all.

    The process is killed after the block.
    """
    port = port or free_ports(1)[0]
    for_tenants = [word for one in tenant_ids for word in ("--for-tenant", one)] or ["--for-all-tenants"]
    options = ("--listen", f"127.0.0.1:{port}", "--jwks", str(keys / "jwks.json"), *for_tenants)
    process = await start_forked(
        fork_server, [str(SCRIPT), "hooks", "serve", module, *options], env or {}, cwd
    )
    try:
        async with asyncio.timeout(60):
            while not (line := (await process.stdout.readline()).decode()).startswith("serving "):
                assert line, "it ended before it served"
        yield PluginProcess(line.rpartition(", as ")[2].strip(), process)
    finally:
        process.kill()
        await process.wait()
