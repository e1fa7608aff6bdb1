"""Background work ends when it is cancelled, at each step of its start."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS, open_database
from spawnmesh_postgres.jobs import install_job_tables, open_job_app, run_job_worker
from spawnmesh_postgres.listener import open_listener

_STEPS = 120  # Of the loop, until all that begins has begun; a few dozen are enough.
_END_SECONDS = 20.0


async def jobs(dsn: ServiceDsn) -> None:
    await run_job_worker(open_job_app(dsn.app, name="test jobs"), concurrency=2, grace_seconds=1)


async def listener(dsn: ServiceDsn) -> None:
    async with open_listener(dsn.app, name="test listener", channels=("told_to_end",)):
        await asyncio.Event().wait()


async def statements(dsn: ServiceDsn) -> None:
    async with open_database(dsn.app, name="test statements", max_connections=2) as database:
        while True:
            async with database.transaction(ALL_TENANTS) as connection:
                await connection.execute("select 1")


@pytest.mark.parametrize("work", [jobs, listener, statements])
async def test_work_ends_at_each_step_of_its_start(
    databases: dict[str, ServiceDsn], work: Callable[[ServiceDsn], Coroutine[Any, Any, None]]
) -> None:
    dsn = databases["session"]
    install_job_tables(dsn.owner)
    for steps in range(_STEPS):
        # In a loop of its own, which has no tasks of other tests.
        await asyncio.to_thread(asyncio.run, end_after(work(dsn), steps))


async def end_after(work: Coroutine[Any, Any, None], steps: int) -> None:
    """Cancel the work after so many steps of the loop; it ends and leaves no task."""
    task = asyncio.create_task(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    _, pending = await asyncio.wait([task], timeout=_END_SECONDS)
    assert not pending, f"it goes on after {steps} steps"
    assert task.cancelled()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"told to end after {steps} steps, it leaves {left}"


async def test_jobs_end_if_the_database_fails_during_the_cancellation(
    databases: dict[str, ServiceDsn],
) -> None:
    """The queue raises the error of the database instead of the cancellation."""
    dsn = databases["session"]
    install_job_tables(dsn.owner)
    async with await psycopg.AsyncConnection.connect(dsn.owner, autocommit=True) as owner:
        task = asyncio.ensure_future(jobs(dsn))
        async with asyncio.timeout(_END_SECONDS):
            while not await (await owner.execute("select id from procrastinate_workers")).fetchone():
                await asyncio.sleep(0.05)
        await owner.execute("alter function procrastinate_unregister_worker_v1 rename to moved_away")
        try:
            task.cancel()
            _, pending = await asyncio.wait([task], timeout=_END_SECONDS)
        finally:
            await owner.execute("alter function moved_away rename to procrastinate_unregister_worker_v1")
            await owner.execute("delete from procrastinate_workers")
    assert not pending
    assert task.cancelled()
