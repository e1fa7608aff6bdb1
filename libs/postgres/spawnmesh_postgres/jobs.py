"""Durable background jobs, enqueued by the transaction that makes them due."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.schema import SchemaManager
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb
from spawnmesh_core.cancellation import raise_if_cancelled

from spawnmesh_postgres.connection import BoundedCancelConnection, is_stale, with_timeouts
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.probed_pool import ProbedPool

_RECONNECT_SECONDS = 1.0

_ENQUEUE = """
    select procrastinate_defer_jobs_v1(array_agg(job))
    from jsonb_populate_recordset(null::procrastinate_job_to_defer_v1, %(jobs)s) as job
"""

JobArguments = Mapping[str, str | int]


def open_job_app(dsn: str, *, name: str, max_connections: int = 4) -> App:
    """Return the job queue of a service. Its tables are in the schema of the service.

    Open it with `async with app.open_async()` to run jobs. The tables belong to procrastinate and
    serve all tenants: a job carries ids, never content.
    """
    conninfo = make_conninfo(dsn, application_name=name)
    connector = PsycopgConnector(pool_factory=_pool, conninfo=conninfo, min_size=1, max_size=max_connections)
    return App(connector=connector)


def _pool(conninfo: str, **options: Any) -> Any:
    """Return a pool with one round trip for each statement of procrastinate.

    Each of its statements is atomic, so it needs no transaction and no check of the connection.
    """
    return ProbedPool[Any](conninfo, **{**options, "check": _check})


async def _check(connection: BoundedCancelConnection[Any]) -> None:
    """Make the pool replace a connection that cannot be used."""
    if is_stale(connection):
        await connection.close()
        raise psycopg.OperationalError("the server has closed the connection")


@dataclass(frozen=True, slots=True)
class DueJob:
    """A job to enqueue: the name of its task and the arguments."""

    task: str
    arguments: JobArguments


async def enqueue(app: App, connection: Connection, *due: DueJob) -> None:
    """Enqueue jobs in the caller's transaction, with one statement. Each job runs at least once.

    In a pipeline it costs no round trip. The API of procrastinate fetches the ids of the jobs,
    which does.
    """
    await connection.execute(_ENQUEUE, {"jobs": jobs_parameter(app, *due)})


def jobs_parameter(app: App, *due: DueJob) -> Jsonb:
    """Return the argument of `procrastinate_defer_jobs_v1`: a list of
    `procrastinate_job_to_defer_v1`.
    """
    jobs = [app.configure_task(one.task).make_new_job(**one.arguments) for one in due]
    parameters = [
        {
            "queue_name": job.queue,
            "task_name": job.task_name,
            "priority": job.priority,
            "lock": job.lock,
            "queueing_lock": job.queueing_lock,
            "args": job.task_kwargs,
        }
        for job in jobs
    ]
    return Jsonb(parameters)


async def run_job_worker(app: App, *, concurrency: int, grace_seconds: float) -> None:
    """Run jobs until cancelled, and reconnect while the database is down.

    After a cancellation, running jobs have the grace to end; the others are returned to the queue.
    The worker does not take over the jobs of a lost worker.
    """
    log = structlog.get_logger()
    while True:
        try:
            try:
                await app.open_async()
                await app.run_worker_async(
                    concurrency=concurrency,
                    install_signal_handlers=False,
                    delete_jobs="successful",
                    shutdown_graceful_timeout=grace_seconds,
                )
            # Also if opening was interrupted: an open pool has tasks that continue after a
            # cancellation.
            finally:
                await app.close_async()
        except (ConnectorException, psycopg.Error) as error:
            raise_if_cancelled()
            log.warning(
                "job_worker_lost_database", error=type(error).__name__, retry_seconds=_RECONNECT_SECONDS
            )
        await asyncio.sleep(_RECONNECT_SECONDS)


def install_job_tables(owner_dsn: str) -> bool:
    """Create the tables of the queue in the owner's schema. Returns False if they exist."""
    with psycopg.connect(with_timeouts(owner_dsn)) as connection:
        connection.execute(
            "select pg_advisory_xact_lock(hashtext('install_job_tables'), hashtext(current_schema()))"
        )
        row = connection.execute("select to_regclass('procrastinate_jobs')").fetchone()
        if row is not None and row[0] is not None:
            return False
        connection.execute(SchemaManager.get_schema())
        return True
