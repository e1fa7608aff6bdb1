"""Brings a service's schema to the newest version, once, however many replicas try at the same time."""

from collections.abc import Callable
from importlib.resources import as_file, files
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from yoyo import get_backend, read_migrations

from spawnmesh_postgres.migration_files import MigrationFile, migration_files

CHECKSUMS = "_yoyo_checksum"
"""The table beside the migration tool's own in which the content of what was applied is remembered."""

_LOCK_KEY = 0x5350574E  # "SPWN": one advisory lock for each database; it goes away with its connection, so a killed migration leaves none.

_CREATE_CHECKSUMS = """
create table if not exists {table} (
    migration_id text primary key,
    sha256       text not null,
    contracts    boolean not null,
    applied_time timestamptz not null default clock_timestamp()
)
"""

# Read and written by worker_beats alone. It is this library's own and holds nothing of any tenant.
_CREATE_WORKERS = """
create table if not exists {table} (
    name       text not null,
    process_id text not null,
    seen_time  timestamptz not null default clock_timestamp(),
    primary key (name, process_id)
)
"""

_RECORD = (
    "insert into {table} (migration_id, sha256, contracts) values (%s, %s, %s) on conflict (migration_id) do nothing"
)


class MigrationChanged(Exception):
    """A migration that was applied has another content now. Applied ones are never edited: what is to change takes a new one."""

    def __init__(self, migration_id: str) -> None:
        super().__init__(f"migration {migration_id} was applied with another content; restore it and add a new one")
        self.migration_id = migration_id


def migrate(owner_dsn: str, *, package: str, schema: str) -> list[str]:
    """Applies the package's `migrations/*.sql` that the schema lacks, in order, each in a transaction; returns their names.

    Connects as the schema's owner, never as the role that serves. Forward only. Waits while another migration of this database runs. Raises
    MigrationChanged, before anything is applied, where an applied one is no longer what it was.
    """
    table = sql.Identifier(schema, CHECKSUMS)
    known = migration_files(package)
    with psycopg.connect(owner_dsn, autocommit=True) as lock, as_file(files(package) / "migrations") as folder:
        lock.execute("select pg_advisory_lock(%s)", (_LOCK_KEY,))
        lock.execute(sql.SQL(_CREATE_CHECKSUMS).format(table=table))
        lock.execute(sql.SQL(_CREATE_WORKERS).format(table=sql.Identifier(schema, "_spawnmesh_worker")))
        _refuse_changed(lock, table, known)
        backend = get_backend(_yoyo_uri(owner_dsn, schema))
        try:
            pending = backend.to_apply(read_migrations(str(folder)))
            backend.apply_migrations(pending)
        finally:
            backend.connection.close()
        # After the migrations themselves: a process that reads these finds everything they promise. What was applied and not recorded, because
        # we were killed here, is recorded by the next call.
        for file in known:
            lock.execute(sql.SQL(_RECORD).format(table=table), (file.migration_id, file.sha256, file.contracts))
        return [migration.id for migration in pending]


def migrate_and_tell(
    owner_dsn: str, *, package: str, schema: str, first: Callable[[str], object] | None = None
) -> None:
    """`migrate` as a command: tells what it did in one line, and ends the process with one where it cannot.

    `first` is given the DSN before, for tables that a library brings along.
    """
    if not owner_dsn:
        raise SystemExit(f"{schema}: migrating takes {schema.upper()}_DATABASE_OWNER_URL, which is not set")
    try:
        if first is not None:
            first(owner_dsn)
        applied = migrate(owner_dsn, package=package, schema=schema)
    except MigrationChanged as error:
        raise SystemExit(f"{schema}: {error}") from None
    except psycopg.OperationalError:
        raise SystemExit(f"{schema}: the database does not let the schema's owner in") from None
    print(f"{schema}: {', '.join(applied) or 'nothing'} applied")


def _refuse_changed(connection: psycopg.Connection, table: sql.Identifier, known: tuple[MigrationFile, ...]) -> None:
    found = connection.execute(sql.SQL("select migration_id, sha256 from {}").format(table)).fetchall()
    recorded: dict[str, str] = dict(found)
    for file in known:
        if recorded.get(file.migration_id, file.sha256) != file.sha256:
            raise MigrationChanged(file.migration_id)


def _yoyo_uri(owner_dsn: str, schema: str) -> str:
    parts = {key: str(value) for key, value in conninfo_to_dict(owner_dsn).items() if value is not None}
    user = quote(parts.pop("user", ""), safe="")
    password = quote(parts.pop("password", ""), safe="")
    database = parts.pop("dbname", "spawnmesh")
    login = f"{user}:{password}" if password else user
    return f"postgresql+psycopg://{login}@/{database}?{urlencode({**parts, 'schema': schema})}"
