"""Fixtures of the model router's contract tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_model_router.jobs import store_usage

from tests.support.model_router.fixtures import World, open_world


@pytest.fixture(scope="session")
async def tables(
    postgres: Postgres, databases: dict[str, ServiceDsn]
) -> AsyncIterator[psycopg.AsyncConnection]:
    """Connect to the tables of all tenants."""
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, options="-c search_path=model_router"
    ) as connection:
        yield connection


@pytest.fixture
async def world(
    databases: dict[str, ServiceDsn], keys: Path, tmp_path: Path, tables: psycopg.AsyncConnection
) -> AsyncIterator[World]:
    """Yield a migrated database and a loopback provider. A test opens its routers itself.

    Its cooldowns are deleted: every router reads those of all providers, again and again.
    """
    async with open_world(databases["model_router"], keys, tmp_path) as opened:
        yield opened
    await tables.execute("delete from cooldowns")
    await tables.execute("delete from unconfirmed_failures")


@pytest.fixture
def quick_spend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let routers in the process of the test store spending and failures at once, and not a second later."""
    monkeypatch.setattr(store_usage, "_INTERVAL_SECONDS", 0.02)
