"""Runs the background loops of `python -m spawnmesh_hook worker`."""

import asyncio
from dataclasses import dataclass

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.worker_heartbeats import send_heartbeats

from spawnmesh_hook.jobs.log_pruner import LogPruner


@dataclass(frozen=True, slots=True)
class Worker:
    """The loops of one worker process."""

    database: Database
    deliveries: JobWorker
    pruner: LogPruner

    async def work_until_cancelled(self) -> None:
        """Deliver events, prune the log and send heartbeats."""
        async with asyncio.TaskGroup() as group:
            group.create_task(send_heartbeats(self.database, "hook-worker"), name="heartbeat")
            group.create_task(self.deliveries.run_jobs_forever(), name="deliveries")
            group.create_task(self.pruner.prune_until_cancelled(), name="log pruner")
