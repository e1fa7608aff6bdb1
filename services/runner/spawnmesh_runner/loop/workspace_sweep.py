"""Remove what killed runners left: workspaces, which hold the plaintext of their runs' files, and
the cgroups of their MCP servers.
"""

import asyncio
from pathlib import Path

import structlog
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import error_label

from spawnmesh_runner.clients.sandbox.cgroup import remove_abandoned_cgroups
from spawnmesh_runner.clients.workspace import remove_abandoned_workspaces

log = structlog.get_logger()

SWEEP_SECONDS = 30.0
"""The pause between two sweeps."""


async def sweep_workspaces(root: Path, mcp_cgroup: Path | None) -> None:
    """Remove the workspaces and the empty cgroups that no process has locked.

    Raises MaterializeError and OSError.
    """
    if count := await remove_abandoned_workspaces(root):
        log.info("abandoned_workspaces_removed", count=count)
    if count := await remove_abandoned_cgroups(mcp_cgroup):
        log.info("abandoned_cgroups_removed", count=count)


async def sweep_workspaces_forever(root: Path, mcp_cgroup: Path | None) -> None:
    """Sweep again and again. A sweep that fails is logged, and the next one tries again."""
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            await sweep_workspaces(root, mcp_cgroup)
        except Exception as error:  # noqa: BLE001 - runs go on whatever the error.
            raise_if_cancelled()
            log.warning("workspaces_not_swept", error=error_label(error))
