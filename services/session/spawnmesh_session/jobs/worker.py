"""The worker: it starts all background work."""

import asyncio

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.worker_heartbeats import send_heartbeats

from spawnmesh_session.jobs.sweep import Sweeper


async def run_worker(database: Database, job_worker: JobWorker, sweeper: Sweeper) -> None:
    """Run jobs and sweep, until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send_heartbeats(database, "session-worker"), name="beat")
        tasks.create_task(sweeper.sweep_forever(), name="sweep")
        tasks.create_task(job_worker.run_jobs_forever(), name="jobs")
