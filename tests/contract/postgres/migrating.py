"""Packages with migrations that grow as releases do, and databases with an empty schema to bring them to."""

from pathlib import Path
from uuid import uuid4

from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.roles import Entries, prepare_database


def empty_schema(postgres: Postgres, schema: str) -> ServiceDsn:
    """Of that name, in a database of its own."""
    name = f"m_{uuid4().hex[:12]}"
    roles = (schema, f"{schema}_owner")
    app, owner = (make_conninfo(postgres.superuser_dsn, user=role, dbname=name) for role in roles)
    prepare_database(postgres.superuser_dsn, {schema: Entries(app, owner)})
    return ServiceDsn(app, owner)


class Package:
    """A package with migrations, which grows as releases do."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = f"released_{uuid4().hex[:12]}"
        self.folder = root / self.name / "migrations"
        self.folder.mkdir(parents=True)
        (root / self.name / "__init__.py").touch()

    def add(self, name: str, text: str) -> None:
        (self.folder / f"{name}.sql").write_text(text)
