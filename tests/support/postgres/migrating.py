"""Packages with migrations, and databases with an empty schema."""

from functools import cache
from pathlib import Path
from uuid import uuid4

from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.migrations import migrate
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database


@cache
def migrate_once(owner_dsn: str, service: str) -> None:
    """Bring the schema of the service, given by its snake name, to its newest version.

    Later calls for the same database do nothing.
    """
    migrate(owner_dsn, package=f"spawnmesh_{service}", schema=service)


def empty_schema(postgres: Postgres, schema: str) -> ServiceDsn:
    """Create an empty schema of that name in its own database."""
    name = f"m_{uuid4().hex[:12]}"
    roles = (schema, f"{schema}_owner")
    app, owner = (make_conninfo(postgres.superuser_dsn, user=role, dbname=name) for role in roles)
    prepare_database(postgres.superuser_dsn, {schema: DatabaseUrls(app, owner)})
    return ServiceDsn(app, owner)


class Package:
    """A package with migrations, to which a test adds migrations as a release does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = f"released_{uuid4().hex[:12]}"
        self.folder = root / self.name / "migrations"
        self.folder.mkdir(parents=True)
        (root / self.name / "__init__.py").touch()

    def add(self, name: str, text: str) -> None:
        (self.folder / f"{name}.sql").write_text(text)
