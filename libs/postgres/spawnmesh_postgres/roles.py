"""One database in which each service sees its own schema and nothing else: `python -m spawnmesh_postgres.roles DIRECTORY`.

The directory holds how to enter, a URL in each file: `admin-url` for a role with CREATEROLE that makes the database (CREATEDB) or owns it, and
for each service `<service>-url` and `<service>-owner-url`, whose users and passwords are what is made.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from spawnmesh_postgres.database_url import NOT_ONE, is_database_url

_ADMIN, _APP, _OWNER, _DIRECT = "admin-url", "-url", "-owner-url", "-direct-url"
_LOCK_KEY = 0x524F4C45  # "ROLE": roles belong to the whole server; two preparations at once would fail on each other's.

_CLOSE_DATABASE = """
REVOKE ALL ON DATABASE {database} FROM PUBLIC;
REVOKE ALL ON SCHEMA public FROM PUBLIC
"""

# Only a superuser may as much as say NOSUPERUSER or NOBYPASSRLS: a new role has neither, and one that exists is looked at.
_PREPARE_ROLE = """
ALTER ROLE {role} LOGIN NOINHERIT;
ALTER ROLE {role} SET search_path = {schema};
GRANT CONNECT ON DATABASE {database} TO {role}
"""

# EXECUTE is granted to PUBLIC by default, which only a revoke without a schema undoes.
_PREPARE_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {owner};
ALTER ROLE {app} SET statement_timeout = '30s';
ALTER ROLE {app} SET idle_in_transaction_session_timeout = '60s';
GRANT USAGE ON SCHEMA {schema} TO {app};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {app};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT USAGE, SELECT ON SEQUENCES TO {app};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT EXECUTE ON FUNCTIONS TO {app}
"""


_IS_TOO_STRONG = """
SELECT 1 FROM pg_roles WHERE rolname = %s AND (rolsuper OR rolbypassrls OR rolcreatedb OR rolcreaterole OR rolreplication)
"""


class MalformedUrlError(ValueError):
    """A file that has no URL; the message names it and repeats nothing of it."""


class TooStrongRoleError(ValueError):
    """A role that exists has more rights than one of a service may have; the message names it."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The two ways into a schema: the role that serves, and the one that owns it and migrates."""

    app: str
    owner: str


def prepare_database(admin_dsn: str, entries: Mapping[str, Entries]) -> None:
    """Makes the database, and a schema with two roles for each service by its snake name; what exists stays, with the passwords of the entries.

    What the owner creates in its schema becomes usable by the app role by itself; a migration may take rights back. Raises ValueError where the
    entries are of several databases, or one names no user, and TooStrongRoleError where a role that exists could do more than use its schema.
    """
    databases = {_part(dsn, "dbname") for entry in entries.values() for dsn in (entry.app, entry.owner)}
    if len(databases) != 1:
        raise ValueError("all entries must name the same database")
    database = databases.pop()
    with psycopg.connect(admin_dsn, autocommit=True) as server:
        server.execute("select pg_advisory_lock(%s)", (_LOCK_KEY,))
        if not _exists(server, "SELECT 1 FROM pg_database WHERE datname = %s", database):
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        with psycopg.connect(make_conninfo(admin_dsn, dbname=database)) as connection:
            _run(connection, _CLOSE_DATABASE, database=database)
            for schema, entry in entries.items():
                app, owner = _part(entry.app, "user"), _part(entry.owner, "user")
                for role, dsn in ((app, entry.app), (owner, entry.owner)):
                    _make_role(connection, role, conninfo_to_dict(dsn).get("password"))
                    _run(connection, _PREPARE_ROLE, role=role, schema=schema, database=database)
                _run(connection, _PREPARE_SCHEMA, schema=schema, app=app, owner=owner)


def _make_role(connection: psycopg.Connection, role: str, password: object) -> None:
    if _exists(connection, _IS_TOO_STRONG, role):
        raise TooStrongRoleError(
            f"the role {role} is a superuser, bypasses row-level security, or makes databases or roles"
        )
    if not _exists(connection, "SELECT 1 FROM pg_roles WHERE rolname = %s", role):
        _run(connection, "CREATE ROLE {role}", role=role)
    # On a managed server the admin is no superuser, and may give a schema only to a role that it is a member of.
    _run(connection, "GRANT {role} TO CURRENT_USER", role=role)
    if password:
        # Hashed here, so that the server's statement log does not have the password.
        encrypted = connection.pgconn.encrypt_password(str(password).encode(), role.encode(), b"scram-sha-256")
        statement = sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(encrypted.decode()))
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


def _read_entries(directory: Path) -> dict[str, Entries]:
    owners = sorted(file for file in directory.iterdir() if file.name.endswith(_OWNER))
    for service in (file.name.removesuffix(_OWNER) for file in owners):
        if (directory / (service + _DIRECT)).exists():
            _read(directory, service + _DIRECT)  # Nothing is made of it; the service could not read it either.
    return {
        file.name.removesuffix(_OWNER).replace("-", "_"): Entries(
            app=_read(directory, file.name.removesuffix(_OWNER) + _APP), owner=_read(directory, file.name)
        )
        for file in owners
    }


def _read(directory: Path, name: str) -> str:
    """The URL in a file. Raises MalformedUrlError."""
    url = (directory / name).read_text().strip()
    if not is_database_url(url):
        raise MalformedUrlError(f"{name} {NOT_ONE}")
    return url


def main(arguments: list[str]) -> None:
    """Prepares the database and tells for which services; what is wrong ends the process with one line that repeats no URL."""
    if len(arguments) != 1:
        raise SystemExit("usage: python -m spawnmesh_postgres.roles DIRECTORY")
    directory = Path(arguments[0])
    try:
        entries = _read_entries(directory)
        prepare_database(_read(directory, _ADMIN), entries)
    except OSError as error:
        raise SystemExit(f"the file {Path(error.filename or '').name} cannot be read") from None
    except (MalformedUrlError, TooStrongRoleError) as error:
        raise SystemExit(f"the database cannot be prepared: {error}") from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise SystemExit(f"the role of admin-url may not prepare the database: {error.diag.message_primary}") from None
    except (ValueError, psycopg.ProgrammingError) as error:
        raise SystemExit(f"the database cannot be prepared: {type(error).__name__}") from None
    except psycopg.OperationalError:
        raise SystemExit("the database does not let the role of admin-url in") from None
    print(f"prepared for {', '.join(entries)}")


if __name__ == "__main__":
    main(sys.argv[1:])
