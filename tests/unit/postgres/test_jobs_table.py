"""Every service with background jobs has the same table of jobs."""

from importlib.resources import files

import pytest

SERVICES = ("session", "hook")
TABLE = (files("spawnmesh_postgres") / "jobs" / "jobs.sql").read_text()


@pytest.mark.parametrize("service", SERVICES)
def test_first_migration_has_the_table_of_the_library(service: str) -> None:
    first = f"0001_{service}.sql"
    assert TABLE in (files(f"spawnmesh_{service}") / "migrations" / first).read_text()
