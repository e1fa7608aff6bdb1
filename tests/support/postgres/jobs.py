"""The table of jobs in a database of its own, jobs in it, and workers on it."""

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from importlib.resources import files

import psycopg
from opentelemetry.metrics import NoOpMeter
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs import store
from spawnmesh_postgres.jobs.job import Again, BackoffPolicy, ClaimedJob, Handler, JobKind, NewJob
from spawnmesh_postgres.jobs.metrics import JobMetrics
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.listener import Listener

KIND = "greet"
NOW = timedelta(0)
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


class Log:
    """A handler that records its jobs, and then does as it is told."""

    def __init__(self, *answers: Again | Exception | None) -> None:
        self.answers = list(answers)
        self.jobs: list[ClaimedJob] = []

    async def __call__(self, job: ClaimedJob) -> Again | None:
        self.jobs.append(job)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def kind_of(handler: Handler, *, concurrency: int = 4, retry: BackoffPolicy | None = None) -> JobKind:
    return JobKind(KIND, handler, concurrency, retry or BackoffPolicy())


async def enqueue(database: Database, tenant_id: str, *keys: str, due_in: timedelta = NOW) -> None:
    async with database.pipelined(tenant_id) as connection:
        await store.enqueue(
            connection, tenant_id, *(NewJob(KIND, key, {"id": key}, due_in=due_in) for key in keys)
        )
