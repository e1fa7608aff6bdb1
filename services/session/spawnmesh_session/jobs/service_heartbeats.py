"""Heartbeats of a replica that serves RPCs: they record that the service is reachable."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import error_label
from spawnmesh_postgres.database import Database

from spawnmesh_session.domain.service_uptime import HEARTBEAT_INTERVAL, LONGEST_BREAK
from spawnmesh_session.store import service_uptime


class ServiceHeartbeats:
    """The heartbeats of this replica, while it serves."""

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self._task = task

    def stop(self) -> None:
        """Send no more heartbeats: this replica refuses calls from now on."""
        self._task.cancel()


@asynccontextmanager
async def open_service_heartbeats(database: Database) -> AsyncIterator[ServiceHeartbeats]:
    """Send heartbeats during the block, until they are stopped."""
    task = asyncio.create_task(_send_forever(database), name="service heartbeats")
    try:
        yield ServiceHeartbeats(task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _send_forever(database: Database) -> None:
    """Send heartbeats until cancelled. A failure of the database is logged once for each outage."""
    is_failing = False
    while True:
        try:
            await service_uptime.record_heartbeat(database, LONGEST_BREAK)
            is_failing = False
        except Exception as error:  # noqa: BLE001 - the next heartbeat tries again, whatever the error
            raise_if_cancelled()
            if not is_failing:
                structlog.get_logger().warning("service_heartbeat_failed", error=error_label(error))
            is_failing = True
        await asyncio.sleep(HEARTBEAT_INTERVAL.total_seconds())
