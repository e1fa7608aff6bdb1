"""The job queue: transactional enqueueing, and the statements of its worker."""

from collections.abc import AsyncIterator
from uuid import uuid4

import psycopg
import pytest
from procrastinate import App, PsycopgConnector
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.jobs import DueJob, enqueue, install_job_tables, open_job_app

TENANT = "t-jobs"
NAME = "test queue"
# Waits until they are gone.
_CLOSE = "select pg_terminate_backend(pid, 20000) from pg_stat_activity where application_name = %s"


@pytest.fixture
async def queue(databases: dict[str, ServiceDsn]) -> AsyncIterator[App]:
    dsn = databases["session"]
    install_job_tables(dsn.owner)
    app = open_job_app(dsn.app, name=NAME, max_connections=2)
    async with app.open_async():
        yield app


@pytest.fixture
async def database(databases: dict[str, ServiceDsn]) -> AsyncIterator[Database]:
    async with open_database(databases["session"].app, name="test jobs", max_connections=2) as opened:
        yield opened


def task(app: App, **options: str) -> str:
    """The name of a task that no worker runs."""
    name = f"t_{uuid4().hex}"

    async def nothing(**_: str | int) -> None:
        """Do nothing; it is never called."""

    app.task(name=name, queue=name, **options)(nothing)
    return name


async def cut_off(queue: App, database: Database, due: list[DueJob]) -> None:
    async with database.pipelined(TENANT) as connection:
        await enqueue(queue, connection, *due)
        await connection.execute("select 1 / 0")


async def test_jobs_are_there_when_their_transaction_is_and_as_they_were_made_due(
    queue: App, database: Database
) -> None:
    name = task(queue, lock="one at a time")
    due = [DueJob(name, {"session_id": 'ses_"1"', "epoch": number}) for number in range(3)]
    with pytest.raises(psycopg.errors.DivisionByZero):
        await cut_off(queue, database, due)
    assert not list(await queue.job_manager.list_jobs_async(task=name))
    async with database.pipelined(TENANT) as connection:
        await enqueue(queue, connection, *due)
    jobs = list(await queue.job_manager.list_jobs_async(task=name))
    assert [job.task_kwargs for job in jobs] == [one.arguments for one in due]
    assert {(job.queue, job.lock, job.status) for job in jobs} == {(name, "one at a time", "todo")}
    for job in jobs:
        assert job.id is not None
        assert await queue.job_manager.cancel_job_by_id_async(job.id, delete_job=True)


async def test_a_connection_that_the_server_has_closed_is_not_used(queue: App, postgres: Postgres) -> None:
    name = task(queue)
    assert not list(await queue.job_manager.list_jobs_async(task=name))
    async with await psycopg.AsyncConnection.connect(postgres.superuser_dsn, autocommit=True) as superuser:
        closed = await (await superuser.execute(_CLOSE, (NAME,))).fetchall()
    assert closed
    assert all(is_gone for (is_gone,) in closed)
    assert not list(await queue.job_manager.list_jobs_async(task=name))


async def test_statements_of_the_library_need_no_transaction(queue: App) -> None:
    assert isinstance(queue.connector, PsycopgConnector)
    async with queue.connector.pool.connection() as connection:
        assert connection.autocommit
