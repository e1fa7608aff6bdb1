"""The table of jobs in a database of its own, and workers on it."""

from collections.abc import Awaitable, Callable, Iterable
from importlib.resources import files

import psycopg
from opentelemetry.metrics import NoOpMeter
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.job import Again, JobKind
from spawnmesh_postgres.jobs.metrics import JobMetrics
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.listener import Listener

TABLE = (files("spawnmesh_postgres") / "jobs" / "jobs.sql").read_text()


async def create_jobs_table(dsn: ServiceDsn) -> None:
    """Create the table without any rows, or do nothing if the schema has it."""
    async with await psycopg.AsyncConnection.connect(dsn.owner) as owner:
        row = await (await owner.execute("select to_regclass('jobs')")).fetchone()
        if row is None or row[0] is None:
            await owner.execute(TABLE.encode())


async def run(
    tenant_id: str, span_name: str, traceparent: str, work: Callable[[], Awaitable[Again | None]]
) -> Again | None:
    """Call the handler and nothing else."""
    return await work()


def worker_of(
    database: Database, listener: Listener, kinds: Iterable[JobKind], *, grace_seconds: float = 0.0
) -> JobWorker:
    """Build a worker of these kinds, which is not running."""
    metrics = JobMetrics(NoOpMeter("test"))
    return JobWorker(database, listener, kinds, run, metrics, grace_seconds=grace_seconds)
