"""Composition root: workspaces, peers, the loops, and a server for health checks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_runner.clients.mcp.config import load_mcp_config
from spawnmesh_runner.clients.peers import open_peers
from spawnmesh_runner.clients.workspace_disk import WorkspaceDisk
from spawnmesh_runner.loop.claim_runs import claim_runs
from spawnmesh_runner.loop.disk_room import wait_for_room
from spawnmesh_runner.loop.execute_run import execute_run
from spawnmesh_runner.loop.workspace_sweep import sweep_workspaces, sweep_workspaces_forever
from spawnmesh_runner.metrics import measure_disk
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runner.tools.calling.mcp_servers import load_mcp_sdk


@asynccontextmanager
async def open_service(process: Process, settings: RunnerSettings) -> AsyncIterator[MeshServer]:
    """Claim and execute runs during the block.

    On exit, give them their grace time and release the rest.

    The yielded server answers health and reflection only, and is not started yet. Raises
    RuntimeError without RUNNER_SIGNING_KEY_FILE. A wrong configuration of MCP servers ends the
    process.
    """
    if process.minter is None:
        raise RuntimeError("the runner claims in its own name and needs RUNNER_SIGNING_KEY_FILE")
    minter = process.minter
    mcp = load_mcp_config(settings.mcp_config_file)
    if mcp.servers:
        load_mcp_sdk()
    await sweep_workspaces(settings.workspace_root)
    disk = WorkspaceDisk(settings.workspace_root, settings.min_free_bytes)
    measure_disk(process.metrics.meter, disk)
    server = build_server(process)
    async with open_peers(process, settings) as peers, asyncio.TaskGroup() as group:

        async def execute(claimed: pb.ClaimedRun) -> None:
            await execute_run(claimed, peers, settings, mcp, disk)

        async def until_room() -> None:
            await wait_for_room(disk, process.health)

        stop = asyncio.Event()
        sweeping = group.create_task(sweep_workspaces_forever(settings.workspace_root))
        group.create_task(claim_runs(stop, peers, minter, settings, until_room, execute))
        yield server
        stop.set()
        sweeping.cancel()
