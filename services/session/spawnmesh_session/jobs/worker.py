"""The worker: it starts all background work."""

import asyncio

from procrastinate import App
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs import run_job_worker
from spawnmesh_postgres.worker_heartbeats import send_heartbeats

from spawnmesh_session.jobs.event_relay import EventRelay
from spawnmesh_session.jobs.sweep import Sweeper


async def run_worker(
    database: Database,
    job_app: App,
    sweeper: Sweeper,
    relay: EventRelay,
    *,
    concurrency: int,
    grace_seconds: float,
) -> None:
    """Run jobs, relay events and sweep, until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send_heartbeats(database, "session-worker"), name="beat")
        tasks.create_task(sweeper.sweep_forever(), name="sweep")
        tasks.create_task(relay.relay_forever(), name="event relay")
        jobs = run_job_worker(job_app, concurrency=concurrency, grace_seconds=grace_seconds)
        tasks.create_task(jobs, name="jobs")
