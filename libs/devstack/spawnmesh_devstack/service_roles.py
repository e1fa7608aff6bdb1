"""One database for the mesh, in which each service sees its own schema and nothing else."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from spawnmesh_devstack.failures import StackError

DATABASE = "spawnmesh"

_ROLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


@dataclass(frozen=True)
class ServiceDsn:
    """The two ways a service enters: `app` reads and writes rows, `owner` owns the schema and runs migrations."""

    app: str
    owner: str


async def create_service_database(superuser_dsn: str, service_snake_names: Sequence[str]) -> dict[str, ServiceDsn]:
    """Creates the database `spawnmesh` with a schema and two roles for each service; what exists is left as it is.

    What the owner creates in its schema becomes usable by the app role by itself; a migration may take rights back.
    `superuser_dsn` is a URL. Raises StackError for a name that is no plain snake_case word.
    """
    for name in service_snake_names:
        if not _ROLE_NAME.fullmatch(name):
            raise StackError(f"{name!r} cannot name a database role")
    async with await psycopg.AsyncConnection.connect(superuser_dsn, autocommit=True) as connection:
        found = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
        if await found.fetchone() is None:
            await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    async with await psycopg.AsyncConnection.connect(_dsn(superuser_dsn, "")) as connection:
        await _run(connection, _CLOSE_DATABASE, database=DATABASE)
        for name in service_snake_names:
            for role in (name, f"{name}_owner"):
                if not await _role_exists(connection, role):
                    await _run(connection, _CREATE_ROLE, role=role)
                await _run(connection, _PREPARE_ROLE, role=role, schema=name, database=DATABASE)
            await _run(connection, _PREPARE_SCHEMA, schema=name, app=name, owner=f"{name}_owner")
    return {
        name: ServiceDsn(app=_dsn(superuser_dsn, name), owner=_dsn(superuser_dsn, f"{name}_owner"))
        for name in service_snake_names
    }


_CLOSE_DATABASE = """
REVOKE ALL ON DATABASE {database} FROM PUBLIC;
REVOKE ALL ON SCHEMA public FROM PUBLIC
"""

_CREATE_ROLE = "CREATE ROLE {role}"

_PREPARE_ROLE = """
ALTER ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOINHERIT;
ALTER ROLE {role} SET search_path = {schema};
GRANT CONNECT ON DATABASE {database} TO {role}
"""

# EXECUTE is granted to PUBLIC by default, which only a revoke without a schema undoes.
_PREPARE_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {owner};
GRANT USAGE ON SCHEMA {schema} TO {app};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {app};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT USAGE, SELECT ON SEQUENCES TO {app};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT EXECUTE ON FUNCTIONS TO {app}
"""


async def _run(connection: psycopg.AsyncConnection[tuple[object, ...]], statements: str, **names: str) -> None:
    identifiers = {key: sql.Identifier(name) for key, name in names.items()}
    for statement in statements.split(";"):
        await connection.execute(sql.SQL(statement).format(**identifiers))


async def _role_exists(connection: psycopg.AsyncConnection[tuple[object, ...]], role: str) -> bool:
    found = await connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,))
    return await found.fetchone() is not None


def _dsn(superuser_dsn: str, role: str) -> str:
    """The same server's database of the mesh, for `role`; without a role, for the superuser."""
    parts = urlsplit(superuser_dsn)
    netloc = f"{role}@" if role else parts.netloc
    return urlunsplit(parts._replace(netloc=netloc, path=f"/{DATABASE}"))
