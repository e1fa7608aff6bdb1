"""Everything that takes a database URL takes one with several hosts, and goes to the one that takes
writes.
"""

from collections.abc import Iterator
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.migrations import migrate
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database
from spawnmesh_postgres.schema_version import wait_for_schema

from tests.support.postgres.standby import execute


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """Return a name for a database, which is dropped after the test."""
    name = f"m_{uuid4().hex[:12]}"
    yield name
    execute(postgres, f"drop database if exists {name} (force)")


def url_of(postgres: Postgres, user: str, database: str) -> str:
    """Return a URL whose first host does not exist."""
    hosts = quote(f"/nowhere,{conninfo_to_dict(postgres.superuser_dsn)['host']}", safe="")
    return f"postgresql://{user}@/{database}?host={hosts}&target_session_attrs=read-write"


async def test_database_is_prepared_and_migrated_by_urls_with_several_hosts(
    postgres: Postgres, database: str
) -> None:
    app, owner = (url_of(postgres, user, database) for user in ("session", "session_owner"))
    prepare_database(url_of(postgres, "postgres", "postgres"), {"session": DatabaseUrls(app, owner)})
    assert migrate(owner, package="spawnmesh_session", schema="session")
    await wait_for_schema(app, package="spawnmesh_session")


def test_read_only_server_is_not_migrated(postgres: Postgres, database: str) -> None:
    """A standby alone is refused at the connection, and not at the first write."""
    app, owner = (url_of(postgres, user, database) for user in ("session", "session_owner"))
    prepare_database(url_of(postgres, "postgres", "postgres"), {"session": DatabaseUrls(app, owner)})
    execute(postgres, f"alter database {database} set default_transaction_read_only = on")
    with pytest.raises(psycopg.OperationalError, match="session is read-only"):
        migrate(owner, package="spawnmesh_session", schema="session")
