"""Remove the workspaces of killed runners, which hold the plaintext of their runs' files."""

import asyncio
from pathlib import Path

import structlog
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import error_label

from spawnmesh_runner.clients.workspace import remove_abandoned_workspaces

log = structlog.get_logger()

SWEEP_SECONDS = 30.0
"""The pause between two sweeps."""


async def sweep_workspaces(root: Path) -> None:
    """Remove the workspaces that no process has locked. Raises MaterializeError and OSError."""
    if count := await remove_abandoned_workspaces(root):
        log.info("abandoned workspaces removed", count=count)


async def sweep_workspaces_forever(root: Path) -> None:
    """Sweep again and again. A sweep that fails is logged, and the next one tries again."""
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            await sweep_workspaces(root)
        except Exception as error:  # noqa: BLE001 - runs go on whatever the error.
            raise_if_cancelled()
            log.warning("workspaces not swept", error=error_label(error))
