"""A notified worker looks for the jobs of the notified kinds alone, and for all kinds at times."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs import store
from spawnmesh_postgres.jobs.job import BackoffPolicy, JobKind
from spawnmesh_postgres.jobs.store import CHANNEL
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.listener import Listener
from spawnmesh_postgres.pipelines import Statement

from tests.support.postgres.jobs import KIND, Log, enqueue, kind_of, worker_of
from tests.support.waiting import eventually


async def test_notified_worker_looks_for_the_kinds_that_were_enqueued(
    database: Database, listener: Listener, looks: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a notification it looks for all kinds, but here that takes an hour."""
    monkeypatch.setattr("spawnmesh_postgres.jobs.worker._POLL_SECONDS", 3600.0)
    done = Log()
    kinds = [kind_of(done), JobKind("wave", Log(), 4, BackoffPolicy())]
    with listener.subscription(CHANNEL) as notified:
        await notified.wait(60)  # Of the listener, when it is connected.
    async with running(worker_of(database, listener, kinds)):
        await eventually(lambda: looks["wave"])
        looks_at_start = looks["wave"]
        for number in range(3):
            await enqueue(database, "t-one", str(number))
            await eventually(lambda: len(done.jobs) == number + 1)  # noqa: B023 - it is called here.
    assert looks["wave"] == looks_at_start
    assert looks[KIND] >= looks_at_start + 3


async def test_notified_worker_looks_for_all_kinds_if_it_is_time_to(
    database: Database, listener: Listener, looks: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notifications of one kind do not keep another one, which is due at a later time, waiting."""
    monkeypatch.setattr("spawnmesh_postgres.jobs.worker._POLL_SECONDS", 0.0)
    kinds = [kind_of(Log()), JobKind("wave", Log(), 4, BackoffPolicy())]
    async with running(worker_of(database, listener, kinds)):
        while looks[KIND] < 100:
            listener.notify(CHANNEL, KIND)
            await asyncio.sleep(0)
    assert looks["wave"] == looks[KIND]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of times that workers looked for jobs of a kind."""
    counted: Counter[str] = Counter()
    build_statement = store.claim_statement

    def claim_statement(kind: str, *arguments: Any) -> Statement:
        counted[kind] += 1
        return build_statement(kind, *arguments)

    monkeypatch.setattr(store, "claim_statement", claim_statement)
    return counted


@asynccontextmanager
async def running(worker: JobWorker) -> AsyncIterator[None]:
    working = asyncio.create_task(worker.run_jobs_forever())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
