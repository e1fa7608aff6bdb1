"""A database with an empty table of jobs, and a listener to its notifications."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.jobs.store import CHANNEL
from spawnmesh_postgres.listener import Listener, open_listener

from tests.support.postgres.jobs import create_jobs_table


@pytest.fixture
async def jobs_dsn(dsn: ServiceDsn) -> ServiceDsn:
    await create_jobs_table(dsn)
    async with await psycopg.AsyncConnection.connect(dsn.owner, autocommit=True) as owner:
        await owner.execute("set row_security = off")
        await owner.execute("truncate jobs")
    return dsn


@pytest.fixture
async def database(jobs_dsn: ServiceDsn) -> AsyncIterator[Database]:
    async with open_database(jobs_dsn.app, name="test jobs", max_connections=4) as opened:
        yield opened


@pytest.fixture
async def listener(jobs_dsn: ServiceDsn) -> AsyncIterator[Listener]:
    async with open_listener(jobs_dsn.app, name="test jobs", channels=(CHANNEL,)) as opened:
        yield opened
