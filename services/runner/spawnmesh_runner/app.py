"""The runner put together: workspaces, peers, the claim loop, and a server for health."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_runner.claim import claim_until
from spawnmesh_runner.mcp.config import load_config
from spawnmesh_runner.mcp.servers import load_sdk
from spawnmesh_runner.mesh import open_mesh
from spawnmesh_runner.run import carry_run
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runner.workspace import remove_abandoned

log = structlog.get_logger()


@asynccontextmanager
async def open_service(process: Process, settings: RunnerSettings) -> AsyncIterator[MeshServer]:
    """Claims and carries runs during the block; leaving it gives them their grace, then hands them back.

    The server answers health and reflection only, and is not started yet. Raises RuntimeError without RUNNER_SIGNING_KEY_FILE; a wrong
    configuration of MCP servers ends the process.
    """
    if process.minter is None:
        raise RuntimeError("the runner claims in its own name and needs RUNNER_SIGNING_KEY_FILE")
    minter = process.minter
    mcp = load_config(settings.mcp_config_file)
    if mcp.servers:
        load_sdk()
    abandoned_count = await remove_abandoned(settings.workspace_root)
    if abandoned_count:
        log.info("abandoned workspaces removed", count=abandoned_count)
    server = build_server(process)
    async with open_mesh(process, settings) as mesh, asyncio.TaskGroup() as group:

        async def carry(claimed: pb.ClaimedRun) -> None:
            await carry_run(claimed, mesh, settings, mcp)

        stop = asyncio.Event()
        group.create_task(claim_until(stop, mesh, minter, settings, carry))
        yield server
        stop.set()
