"""Schemas of all services, for the tests of the rendered chart."""

import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.migrations import migrate


@pytest.fixture(scope="module")
def migrated(databases: dict[str, ServiceDsn]) -> dict[str, ServiceDsn]:
    for name, dsn in databases.items():
        migrate(dsn.owner, package=f"spawnmesh_{name}", schema=name)
    return databases
