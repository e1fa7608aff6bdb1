"""Background work ends when it is cancelled, at each step of its start."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS, open_database
from spawnmesh_postgres.jobs.store import CHANNEL
from spawnmesh_postgres.listener import open_listener

from tests.support.postgres.jobs import create_jobs_table, worker_of

_STEPS = 120  # Of the loop, until all that begins has begun; a few dozen are enough.
_END_SECONDS = 60.0


async def jobs(dsn: ServiceDsn) -> None:
    async with (
        open_database(dsn.app, name="test jobs", max_connections=2) as database,
        open_listener(dsn.app, name="test jobs", channels=(CHANNEL,)) as listener,
    ):
        await worker_of(database, listener, []).run_jobs_forever()


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
    dsn: ServiceDsn, work: Callable[[ServiceDsn], Coroutine[Any, Any, None]]
) -> None:
    await create_jobs_table(dsn)
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
