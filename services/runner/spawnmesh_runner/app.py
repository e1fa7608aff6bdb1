"""Composition root: workspaces, peers, the loops, and a server for health checks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_runner.clients.mcp.config import McpConfig, commands_among, load_mcp_config
from spawnmesh_runner.clients.peers import open_peers
from spawnmesh_runner.clients.sandbox.cgroup import own_cgroup
from spawnmesh_runner.clients.sandbox.command_line import MIB
from spawnmesh_runner.clients.sandbox.sandbox import NO_SANDBOX, FindSandbox, Sandbox, find_sandbox
from spawnmesh_runner.clients.workspace_disk import WorkspaceDisk
from spawnmesh_runner.loop.claim_runs import claim_runs
from spawnmesh_runner.loop.disk_room import wait_for_room
from spawnmesh_runner.loop.execute_run import execute_run
from spawnmesh_runner.loop.run_changes import RunChanges, follow_run_changes
from spawnmesh_runner.loop.workspace_sweep import sweep_workspaces, sweep_workspaces_forever
from spawnmesh_runner.metrics import measure_disk, measure_sandbox, measure_slots
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runner.tools.calling.mcp_servers import load_mcp_sdk

SANDBOX_CHECK = "mcp-sandbox"
"""The health check that fails while MCP servers that are commands are refused."""


@asynccontextmanager
async def open_service(
    process: Process, settings: RunnerSettings, *, find: FindSandbox = find_sandbox
) -> AsyncIterator[MeshServer]:
    """Claim and execute runs during the block.

    On exit, give them their grace time and release the rest.

    The yielded server answers health and reflection only, and is not started yet. Raises
    RuntimeError without RUNNER_SIGNING_KEY_FILE. A wrong configuration of MCP servers ends the
    process. Without a sandbox for those that are commands, the health check `mcp-sandbox` fails,
    and the runner is ready: other runs need none.
    """
    if process.minter is None:
        raise RuntimeError("the runner claims in its own name and needs RUNNER_SIGNING_KEY_FILE")
    minter = process.minter
    mcp = load_mcp_config(settings.mcp_config_file, keep_from=_own_files(settings))
    if mcp.servers:
        load_mcp_sdk()
    await sweep_workspaces(settings.workspace_root, settings.mcp_cgroup)
    disk = WorkspaceDisk(settings.workspace_root, settings.min_free_bytes)
    measure_disk(process.metrics.meter, disk)
    sandbox = await _sandbox(process, settings, mcp, find)
    server = build_server(process)
    async with open_peers(process, settings) as peers, asyncio.TaskGroup() as group:
        changes = RunChanges()

        async def execute(claimed: pb.ClaimedRun) -> None:
            await execute_run(claimed, peers, settings, mcp, sandbox, disk, changes)

        async def until_room() -> None:
            await wait_for_room(disk, process.health)

        stop, running = asyncio.Event(), set[asyncio.Task[None]]()
        measure_slots(process.metrics.meter, running, settings.max_runs)
        sweeping = group.create_task(sweep_workspaces_forever(settings.workspace_root, settings.mcp_cgroup))
        following = group.create_task(follow_run_changes(peers, minter, settings.runner_id, changes))
        claiming = group.create_task(claim_runs(stop, running, peers, minter, settings, until_room, execute))
        claiming.add_done_callback(lambda _: following.cancel())
        yield server
        stop.set()
        sweeping.cancel()


async def _sandbox(process: Process, settings: RunnerSettings, mcp: McpConfig, find: FindSandbox) -> Sandbox:
    """Return the sandbox of servers that are commands, and report it.

    Without such servers none is looked for.
    """
    if not commands_among(mcp.servers):
        return NO_SANDBOX
    sandbox = await find(settings.workspace_root, settings.unsandboxed_stdio_servers)
    await _check_cgroup(settings.mcp_cgroup)
    sandbox = replace(sandbox, cgroup=settings.mcp_cgroup)
    measure_sandbox(process.metrics.meter, sandbox)
    await process.health.dependency(SANDBOX_CHECK, is_up=sandbox.command_line is not None)
    return sandbox


async def _check_cgroup(parent: Path | None) -> None:
    """End the process with one line if no cgroup with bounds can be made below the parent."""
    try:
        async with own_cgroup(parent, memory_bytes=MIB, processes=1):
            return
    except OSError as error:
        raise SystemExit(
            f"runner: RUNNER_MCP_CGROUP is no cgroup that is delegated with memory and pids: {error.strerror}"
        ) from None


def _own_files(settings: RunnerSettings) -> list[Path]:
    """Return what no server may be given to read."""
    files = (settings.workspace_root, settings.signing_key_file, settings.tls_key_file)
    return [file for file in files if file is not None]
