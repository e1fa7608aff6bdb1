"""The beats of a replica that serves RPCs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import error_label
from spawnmesh_postgres.database import Database

from spawnmesh_session.domain.serving import BEAT_INTERVAL, LONGEST_BREAK
from spawnmesh_session.store import service_uptime


class ServingBeats:
    """The beats of this replica, while it serves."""

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self._task = task

    def stop(self) -> None:
        """Send no more beats: this replica refuses calls from now on."""
        self._task.cancel()


@asynccontextmanager
async def open_serving_beats(database: Database) -> AsyncIterator[ServingBeats]:
    """Send beats during the block, until they are stopped."""
    task = asyncio.create_task(_beat_forever(database), name="serving beats")
    try:
        yield ServingBeats(task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _beat_forever(database: Database) -> None:
    """Beat until cancelled. A failure of the database is logged once for each outage."""
    is_failing = False
    while True:
        try:
            await service_uptime.beat(database, LONGEST_BREAK)
            is_failing = False
        except Exception as error:  # noqa: BLE001 - the next beat tries again, whatever the error
            raise_if_cancelled()
            if not is_failing:
                structlog.get_logger().warning("serving_beat_failed", error=error_label(error))
            is_failing = True
        await asyncio.sleep(BEAT_INTERVAL.total_seconds())
