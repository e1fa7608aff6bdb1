"""The services on a Citus cluster: a coordinator and two workers, shared by all tests here."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn, create_service_database
from spawnmesh_devstack.watchdog import Watchdog

from tests.support.citus.cluster import Cluster, why_missing
from tests.support.citus.servers import citus_cluster
from tests.support.postgres.services import SERVICES_WITH_DATABASE
from tests.support.session.fixtures import (
    _served_mesh,
    empty_queue,
    mesh,
    migrated,
    open_mesh,
    open_peers,
    peers,
    remains,
    session_database,
    session_tables,
)

__all__ = [
    "_served_mesh",
    "empty_queue",
    "mesh",
    "migrated",
    "open_mesh",
    "open_peers",
    "peers",
    "remains",
    "session_database",
    "session_tables",
]


@pytest.fixture(scope="session")
async def cluster(watchdog: Watchdog) -> AsyncIterator[Cluster]:
    """Start the servers, or skip the test where the extension is missing."""
    if reason := why_missing():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="spawnmesh-citus-") as folder:
        async with citus_cluster(Path(folder), watchdog) as started:
            yield started


@pytest.fixture(scope="session")
def postgres(cluster: Cluster) -> Postgres:
    """Return the coordinator."""
    return cluster.coordinator


@pytest.fixture(scope="session")
async def databases(postgres: Postgres) -> dict[str, ServiceDsn]:
    """Return the addresses of the roles on the coordinator."""
    return await create_service_database(postgres.superuser_dsn, SERVICES_WITH_DATABASE)
