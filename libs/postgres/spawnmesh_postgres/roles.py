"""Prepare one database with a schema for each service: `python -m
spawnmesh_postgres.roles [--citus] DIRECTORY`.

With `--citus` the database becomes the coordinator of a Citus cluster: the schemas are distributed
when they are migrated.

The directory has a URL in each file: `admin-url` for a role with CREATEROLE that owns the database
or creates it (CREATEDB), and for each service `<service>-url` and `<service>-owner-url`. The users
and passwords of the latter are created.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from spawnmesh_postgres.citus import has_citus
from spawnmesh_postgres.connection import with_timeouts
from spawnmesh_postgres.database_url import NOT_A_URL, is_database_url

_ADMIN, _APP, _OWNER, _DIRECT = "admin-url", "-url", "-owner-url", "-direct-url"
# "ROLE": roles belong to the server; two concurrent preparations would conflict.
_LOCK_KEY = 0x524F4C45

_CLOSE_DATABASE = """
REVOKE ALL ON DATABASE {database} FROM PUBLIC;
REVOKE ALL ON SCHEMA public FROM PUBLIC
"""

# Only a superuser may use NOSUPERUSER or NOBYPASSRLS. A new role has neither; an existing one is
# checked.
_PREPARE_ROLE = """
ALTER ROLE {role} LOGIN NOINHERIT;
ALTER ROLE {role} SET search_path = {schema};
GRANT CONNECT ON DATABASE {database} TO {role}
"""

# PUBLIC has EXECUTE by default; only a REVOKE without a schema removes it.
_PREPARE_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {owner};
ALTER ROLE {app} SET statement_timeout = '30s';
ALTER ROLE {app} SET idle_in_transaction_session_timeout = '60s';
ALTER ROLE {app} SET client_connection_check_interval = '1s';
GRANT USAGE ON SCHEMA {schema} TO {app};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema}
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {app};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT USAGE, SELECT ON SEQUENCES TO {app};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT EXECUTE ON FUNCTIONS TO {app}
"""

# Only then does `set local spawnmesh.tenant` reach the nodes that hold the tenant's rows.
_PREPARE_FOR_CITUS = "ALTER ROLE {app} SET citus.propagate_set_commands = 'local'"

_NOT_INSTALLED = (
    psycopg.errors.FeatureNotSupported,  # There is no such extension.
    psycopg.errors.InternalError_,  # Its library was not loaded with the server.
)

_IS_TOO_STRONG = """
SELECT 1 FROM pg_roles WHERE rolname = %s
   AND (rolsuper OR rolbypassrls OR rolcreatedb OR rolcreaterole OR rolreplication)
"""


class MalformedUrlError(ValueError):
    """A file has no URL. The message names the file and does not repeat its content."""


class TooStrongRoleError(ValueError):
    """An existing role has more rights than the role of a service may have.

    The message names the role.
    """


class CitusMissingError(ValueError):
    """The server cannot create the extension `citus`."""

    def __init__(self) -> None:
        super().__init__(
            "the server has no extension citus; install Citus, and name it in shared_preload_libraries"
        )


@dataclass(frozen=True, slots=True)
class DatabaseUrls:
    """The two ways into a schema: the role that serves, and the one that owns it and migrates."""

    app: str
    owner: str


def prepare_database(admin_dsn: str, entries: Mapping[str, DatabaseUrls], *, citus: bool = False) -> None:
    """Makes the database, and a schema with two roles for each service by its snake
    name; what exists stays, with the passwords of the entries.

    What the owner creates in its schema becomes usable by the app role by itself; a migration may
    take rights back. `citus` creates the extension, for which the admin must be a superuser, unless
    the database has it. The nodes of the cluster are added by an operator.

    Raises ValueError where the entries are of several databases, or one names no user,
    TooStrongRoleError where a role that exists could do more than use its schema, and
    CitusMissingError.
    """
    databases = {_part(dsn, "dbname") for entry in entries.values() for dsn in (entry.app, entry.owner)}
    if len(databases) != 1:
        raise ValueError("all entries must name the same database")
    database = databases.pop()
    admin_dsn = with_timeouts(admin_dsn)
    with psycopg.connect(admin_dsn, autocommit=True) as server:
        server.execute("select pg_advisory_lock(%s)", (_LOCK_KEY,))
        if not _exists(server, "SELECT 1 FROM pg_database WHERE datname = %s", database):
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        with psycopg.connect(make_conninfo(admin_dsn, dbname=database)) as connection:
            if citus and not has_citus(connection):
                _create_citus(connection)
            _run(connection, _CLOSE_DATABASE, database=database)
            for schema, entry in entries.items():
                app, owner = _part(entry.app, "user"), _part(entry.owner, "user")
                for role, dsn in ((app, entry.app), (owner, entry.owner)):
                    _make_role(connection, role, conninfo_to_dict(dsn).get("password"))
                    _run(connection, _PREPARE_ROLE, role=role, schema=schema, database=database)
                _run(connection, _PREPARE_SCHEMA, schema=schema, app=app, owner=owner)
                if has_citus(connection):
                    _run(connection, _PREPARE_FOR_CITUS, app=app)


def _create_citus(connection: psycopg.Connection) -> None:
    try:
        connection.execute("CREATE EXTENSION citus")
    except _NOT_INSTALLED as error:
        raise CitusMissingError from error


def _make_role(connection: psycopg.Connection, role: str, password: object) -> None:
    if _exists(connection, _IS_TOO_STRONG, role):
        raise TooStrongRoleError(
            f"the role {role} is a superuser, bypasses row-level security, or makes databases or roles"
        )
    if not _exists(connection, "SELECT 1 FROM pg_roles WHERE rolname = %s", role):
        _run(connection, "CREATE ROLE {role}", role=role)
    # On a managed server the admin is no superuser and needs membership to give a schema to a role.
    _run(connection, "GRANT {role} TO CURRENT_USER", role=role)
    if password:
        # Hashed here: the statement log of the server must not contain the password.
        encrypted = connection.pgconn.encrypt_password(
            str(password).encode(), role.encode(), b"scram-sha-256"
        )
        statement = sql.SQL("ALTER ROLE {} PASSWORD {}").format(
            sql.Identifier(role), sql.Literal(encrypted.decode())
        )
        connection.execute(statement)


def _part(dsn: str, name: str) -> str:
    value = conninfo_to_dict(dsn).get(name)
    if not value:
        raise ValueError(f"an entry lacks its {name}")
    return str(value)


def _run(connection: psycopg.Connection, statements: str, **names: str) -> None:
    identifiers = {key: sql.Identifier(name) for key, name in names.items()}
    for statement in statements.split(";"):
        connection.execute(sql.SQL(statement).format(**identifiers))


def _exists(connection: psycopg.Connection, query: str, name: str) -> bool:
    return connection.execute(query.encode(), (name,)).fetchone() is not None


def _read_entries(directory: Path) -> dict[str, DatabaseUrls]:
    owners = sorted(file for file in directory.iterdir() if file.name.endswith(_OWNER))
    for service in (file.name.removesuffix(_OWNER) for file in owners):
        if (directory / (service + _DIRECT)).exists():
            _read(directory, service + _DIRECT)  # Only checked; the service reads it itself.
    return {
        file.name.removesuffix(_OWNER).replace("-", "_"): DatabaseUrls(
            app=_read(directory, file.name.removesuffix(_OWNER) + _APP), owner=_read(directory, file.name)
        )
        for file in owners
    }


def _read(directory: Path, name: str) -> str:
    """Return the URL in a file. Raises MalformedUrlError."""
    url = (directory / name).read_text().strip()
    if not is_database_url(url):
        raise MalformedUrlError(f"{name} {NOT_A_URL}")
    return url


def main(arguments: list[str]) -> None:
    """Prepare the database and print the services.

    Raises SystemExit with one line, without URLs, if that fails.
    """
    citus = arguments[:1] == ["--citus"]
    if len(arguments) != 1 + citus:
        raise SystemExit("usage: python -m spawnmesh_postgres.roles [--citus] DIRECTORY")
    directory = Path(arguments[-1])
    try:
        entries = _read_entries(directory)
        prepare_database(_read(directory, _ADMIN), entries, citus=citus)
    except OSError as error:
        raise SystemExit(f"the file {Path(error.filename or '').name} cannot be read") from None
    except (MalformedUrlError, TooStrongRoleError, CitusMissingError) as error:
        raise SystemExit(f"the database cannot be prepared: {error}") from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise SystemExit(
            f"the role of admin-url may not prepare the database: {error.diag.message_primary}"
        ) from None
    except (ValueError, psycopg.ProgrammingError) as error:
        raise SystemExit(f"the database cannot be prepared: {type(error).__name__}") from None
    except psycopg.OperationalError:
        raise SystemExit("the database refuses the login of the role of admin-url") from None
    print(f"prepared for {', '.join(entries)}")


if __name__ == "__main__":
    main(sys.argv[1:])
