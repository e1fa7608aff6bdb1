"""Every service with background jobs has the same table of jobs, each with operations the same table
of these, and every one the same audit log."""

from importlib.resources import files

import pytest

SERVICES = ("session", "attachment_blob", "hook", "transcript")
WITH_OPERATIONS = ("session", "attachment_blob", "transcript")
AUDITED = ("session", "attachment_blob", "transcript", "model_router", "hook")
AUDIT_TABLES = (files("spawnmesh_postgres") / "audit" / "audit.sql").read_text()
TABLE = (files("spawnmesh_postgres") / "jobs" / "jobs.sql").read_text()
OPERATIONS = (files("spawnmesh_postgres") / "long_running" / "operations.sql").read_text()


@pytest.mark.parametrize("service", SERVICES)
def test_first_migration_has_the_table_of_the_library(service: str) -> None:
    first = f"0001_{service}.sql"
    assert TABLE in (files(f"spawnmesh_{service}") / "migrations" / first).read_text()


@pytest.mark.parametrize("service", AUDITED)
def test_first_migration_has_the_tables_of_the_audit_log(service: str) -> None:
    first = f"0001_{service}.sql"
    assert AUDIT_TABLES in (files(f"spawnmesh_{service}") / "migrations" / first).read_text()


@pytest.mark.parametrize("service", WITH_OPERATIONS)
def test_first_migration_has_the_table_of_operations(service: str) -> None:
    first = f"0001_{service}.sql"
    assert OPERATIONS in (files(f"spawnmesh_{service}") / "migrations" / first).read_text()
