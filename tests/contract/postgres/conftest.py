"""A database with a table of notes, and a pool of two connections to it."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn, create_service_database
from spawnmesh_postgres.database import Database, open_database

from tests.support.postgres.channels import add_channels
from tests.support.postgres.notes import TABLE


@pytest.fixture
async def dsn(postgres: Postgres) -> ServiceDsn:
    made = await create_service_database(postgres.superuser_dsn, ["scratch"])
    return await add_channels(made["scratch"], "scratch")


@pytest.fixture
async def database(dsn: ServiceDsn) -> AsyncIterator[Database]:
    async with await psycopg.AsyncConnection.connect(dsn.owner) as owner:
        await owner.execute(TABLE)
    async with open_database(dsn.app, name="test", max_connections=2, wait_seconds=1.5) as opened:
        yield opened
