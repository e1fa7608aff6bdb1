"""Wait while the disk of the workspaces is full, and say so."""

import asyncio

import structlog
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_runtime.health import Health

from spawnmesh_runner.clients.workspace_disk import WorkspaceDisk

log = structlog.get_logger()

DISK_CHECK = "workspace-disk"
"""The health check that fails while the disk of the workspaces has no room."""

_LOOK_AGAIN_SECONDS = 1.0
_WARN_AGAIN_SECONDS = 60.0


async def wait_for_room(disk: WorkspaceDisk, health: Health) -> None:
    """Return as soon as another run has room on the disk.

    Until then the health check fails, and the log says so each minute. A disk that cannot be
    looked at counts as full.
    """
    if await _has_room(disk):
        await health.passed(DISK_CHECK)
        return
    await health.failed(DISK_CHECK)
    warn_at = monotonic_seconds()
    while True:
        if monotonic_seconds() >= warn_at:
            log.error(
                "workspace_disk_full",
                min_free_bytes=disk.min_free_bytes,
            )
            warn_at += _WARN_AGAIN_SECONDS
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        if await _has_room(disk):
            await health.passed(DISK_CHECK)
            log.info("workspace_disk_has_room")
            return


async def _has_room(disk: WorkspaceDisk) -> bool:
    try:
        return await disk.has_room()
    except OSError as error:
        log.warning("workspace_disk_unreadable", error=type(error).__name__)
        return False
