"""One database for the mesh, in which each service sees its own schema only."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from spawnmesh_postgres.roles import DatabaseUrls, prepare_database

from spawnmesh_devstack.failures import StackError

DATABASE = "spawnmesh"

_ROLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


@dataclass(frozen=True)
class ServiceDsn:
    """The two DSNs of a service: `app` reads and writes rows, `owner` owns the schema and runs
    migrations.
    """

    app: str
    owner: str


async def create_service_database(
    superuser_dsn: str, service_snake_names: Sequence[str]
) -> dict[str, ServiceDsn]:
    """Create the database `spawnmesh` with a schema and two roles for each service; existing ones
    are unchanged.

    `superuser_dsn` is a URL. Raises StackError for a name that is not in snake_case.
    """
    for name in service_snake_names:
        if not _ROLE_NAME.fullmatch(name):
            raise StackError(f"{name!r} cannot name a database role")
    dsns = {
        name: ServiceDsn(app=_dsn(superuser_dsn, name), owner=_dsn(superuser_dsn, f"{name}_owner"))
        for name in service_snake_names
    }
    entries = {name: DatabaseUrls(dsn.app, dsn.owner) for name, dsn in dsns.items()}
    await asyncio.to_thread(prepare_database, superuser_dsn, entries)
    return dsns


def _dsn(superuser_dsn: str, role: str) -> str:
    """Return the URL of the mesh's database on the same server for `role`."""
    parts = urlsplit(superuser_dsn)
    return urlunsplit(parts._replace(netloc=f"{role}@", path=f"/{DATABASE}"))
