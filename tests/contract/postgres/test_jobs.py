"""A worker of the job queue that is told to end."""

import asyncio

from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.jobs import install_job_tables, open_job_app, work_on_jobs

_STEPS = 120  # Of the loop, until all that begins has begun; a few dozen are enough.
_END_SECONDS = 20.0


async def test_it_ends_at_whatever_step_of_its_start_it_is_told_to(databases: dict[str, ServiceDsn]) -> None:
    install_job_tables(databases["session"].owner)
    for steps in range(_STEPS):
        app = open_job_app(databases["session"].app, name="test jobs")
        worker = asyncio.create_task(work_on_jobs(app, concurrency=2, grace_seconds=1))
        for _ in range(steps):
            await asyncio.sleep(0)
        worker.cancel()
        _, pending = await asyncio.wait([worker], timeout=_END_SECONDS)
        assert not pending, f"it goes on after {steps} steps"
        assert worker.cancelled()
