"""Durable background jobs, put into the queue by the transaction that makes them due."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.schema import SchemaManager
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool
from spawnmesh_core.cancellation import heed_cancellation

from spawnmesh_postgres.connection import is_gone
from spawnmesh_postgres.database import Connection

_RECONNECT_SECONDS = 1.0

_ENQUEUE = """
    select procrastinate_defer_jobs_v1(array_agg(job))
    from jsonb_populate_recordset(null::procrastinate_job_to_defer_v1, %(jobs)s) as job
"""  # As the library does, which would wait for the ids.

JobArguments = Mapping[str, str | int]


def open_job_app(dsn: str, *, name: str, max_connections: int = 4) -> App:
    """The queue of one service; its tables are in the service's own schema. Open it with `async with app.open_async()` to work on jobs.

    Queue tables are the library's and serve all tenants: a job carries ids, never content.
    """
    conninfo = make_conninfo(dsn, application_name=name)
    connector = PsycopgConnector(pool_factory=_pool, conninfo=conninfo, min_size=1, max_size=max_connections)
    return App(connector=connector)


def _pool(**arguments: Any) -> AsyncConnectionPool[AsyncConnection[Any]]:
    """One round trip for each statement of the library's: each is whole by itself, needs no transaction around it, and no question before."""
    return AsyncConnectionPool(**{**arguments, "configure": _without_transactions, "check": _check})


async def _without_transactions(connection: AsyncConnection[Any]) -> None:
    await connection.set_autocommit(True)


async def _check(connection: AsyncConnection[Any]) -> None:
    """Has the pool make another one where the server has closed this one."""
    if is_gone(connection):
        raise psycopg.OperationalError("the server has closed the connection")


@dataclass(frozen=True, slots=True)
class DueJob:
    """A task by its name, and what it is called with."""

    task: str
    arguments: JobArguments


async def enqueue(app: App, connection: Connection, *due: DueJob) -> None:
    """Puts jobs into the queue when the caller's transaction commits, all in one statement, which is not waited for in a pipeline.

    Each runs at least once.
    """
    await connection.execute(_ENQUEUE, {"jobs": described(app, *due)})


def described(app: App, *due: DueJob) -> Jsonb:
    """What `procrastinate_defer_jobs_v1` is to be told of the jobs: a list of `procrastinate_job_to_defer_v1`."""
    made = [app.configure_task(one.task).make_new_job(**one.arguments) for one in due]
    jobs = [
        {
            "queue_name": job.queue,
            "task_name": job.task_name,
            "priority": job.priority,
            "lock": job.lock,
            "queueing_lock": job.queueing_lock,
            "args": job.task_kwargs,
        }
        for job in made
    ]
    return Jsonb(jobs)


async def work_on_jobs(app: App, *, concurrency: int, grace_seconds: float) -> None:
    """Works on jobs until cancelled; while the database is away it tries again. Jobs that a lost worker held are not its own to take.

    Once cancelled, the jobs under way have the grace to end in; what takes longer is given back, to be tried again.
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
            finally:  # Also where opening was cut off: a pool that is left open has tasks that go on after they are cancelled.
                await app.close_async()
        except (ConnectorException, psycopg.Error) as error:
            heed_cancellation()
            log.warning("job_worker_lost_database", error=type(error).__name__, retry_seconds=_RECONNECT_SECONDS)
        await asyncio.sleep(_RECONNECT_SECONDS)


def install_job_tables(owner_dsn: str) -> bool:
    """Creates the queue's tables in the owner's schema; False where they exist."""
    with psycopg.connect(owner_dsn) as connection:
        connection.execute("select pg_advisory_xact_lock(hashtext('install_job_tables'), hashtext(current_schema()))")
        row = connection.execute("select to_regclass('procrastinate_jobs')").fetchone()
        if row is not None and row[0] is not None:
            return False
        connection.execute(SchemaManager.get_schema())
        return True
