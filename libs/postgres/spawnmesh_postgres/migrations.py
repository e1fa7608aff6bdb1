"""Brings a service's schema to the newest version, once, however many replicas try at the same time."""

from collections.abc import Callable
from contextlib import nullcontext
from importlib.resources import as_file, files
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from yoyo import get_backend, read_migrations

from spawnmesh_postgres.held_locks import HELD, Patience, holder_of, settle, watching
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


class MigrationFailed(Exception):
    """A migration was not applied, for what the message says; its cause is the driver's. One in a transaction has left nothing."""

    def __init__(self, migration_id: str, why: str) -> None:
        super().__init__(f"{migration_id} was not applied: {why}")
        self.migration_id = migration_id


class AnotherMigrates(Exception):
    """Another migration of the same database did not end in time. Nothing was tried."""


class _LockHeld(Exception):
    """A try that ended by a lock that somebody else holds, and is described by `lock`."""

    def __init__(self, migration_id: str, lock: str) -> None:
        super().__init__(f"{migration_id} waits for {lock}")
        self.migration_id = migration_id
        self.lock = lock


_PATIENCE = Patience()
# Classes of SQLSTATE. A server that refuses a login, or is not there, mostly leaves none at all.
_NOT_LET_IN = ("28", "3D")


def migrate(
    owner_dsn: str,
    *,
    package: str,
    schema: str,
    patience: Patience = _PATIENCE,
    tell: Callable[[str], object] = lambda _line: None,
) -> list[str]:
    """Applies the package's `migrations/*.sql` that the schema lacks, in order, each in a transaction; returns their names.

    Connects as the schema's owner, never as the role that serves. Forward only. Waits while another migration of this database runs, and for
    locks, as `patience` says; `tell` is given a line for each time that it waited in vain. Raises MigrationChanged, before anything is applied,
    where an applied one is no longer what it was, AnotherMigrates, and MigrationFailed for one that the database refuses or whose locks were
    never free; those before it are applied then.
    """
    applied: list[str] = []
    end = monotonic() + patience.seconds
    while True:
        try:
            _apply_rest(owner_dsn, package, schema, applied, patience, end, tell)
        except _LockHeld as held:
            if monotonic() + patience.pause_seconds >= end:
                why = f"it waited in vain for {held.lock}; {patience.seconds:g} s are over"
                raise MigrationFailed(held.migration_id, why) from held.__cause__
            tell(f"{held}; tried again in {patience.pause_seconds:g} s")
            sleep(patience.pause_seconds)  # With nothing open: others may migrate meanwhile, also what this one was to.
        else:
            return applied


def migrate_and_tell(
    owner_dsn: str,
    *,
    package: str,
    schema: str,
    first: Callable[[str], object] | None = None,
    patience: Patience = _PATIENCE,
) -> None:
    """`migrate` as a command: tells what it did in one line, what it waits for in others, and ends the process with one where it cannot.

    `first` is given the DSN before, for tables that a library brings along.
    """
    if not owner_dsn:
        raise SystemExit(f"{schema}: migrating takes {schema.upper()}_DATABASE_OWNER_URL, which is not set")

    def tell(line: str) -> None:
        print(f"{schema}: {line}", flush=True)

    try:
        if first is not None:
            first(owner_dsn)
        applied = migrate(owner_dsn, package=package, schema=schema, patience=patience, tell=tell)
    except (MigrationChanged, MigrationFailed, AnotherMigrates) as error:
        raise SystemExit(f"{schema}: {error}") from None
    except psycopg.Error as error:
        if _is_of_entering(error):
            raise SystemExit(f"{schema}: the database does not let the schema's owner in") from None
        raise SystemExit(f"{schema}: the schema cannot be migrated: {_words_of(error)}") from None
    tell(f"{', '.join(applied) or 'nothing'} applied")


def _apply_rest(
    owner_dsn: str,
    package: str,
    schema: str,
    applied: list[str],
    patience: Patience,
    end: float,
    tell: Callable[[str], object],
) -> None:
    """One try. What it applied is added to `applied`, also where it raises _LockHeld for what comes then."""
    table = sql.Identifier(schema, CHECKSUMS)
    known = migration_files(package)
    with psycopg.connect(owner_dsn, autocommit=True) as lock, as_file(files(package) / "migrations") as folder:
        settle(lock)
        _wait_for_others(lock, patience, end, tell)
        lock.execute(sql.SQL(_CREATE_CHECKSUMS).format(table=table))
        lock.execute(sql.SQL(_CREATE_WORKERS).format(table=sql.Identifier(schema, "_spawnmesh_worker")))
        _refuse_changed(lock, table, known)
        backend = get_backend(_yoyo_uri(owner_dsn, schema))
        try:
            settle(backend.connection)
            backend.break_lock()  # Its own, a row: who left one was killed, since nobody else has our lock.
            for migration in backend.to_apply(read_migrations(str(folder))):
                _apply(migration, backend, lock, patience)
                applied.append(migration.id)
        finally:
            backend.connection.close()
        # After the migrations themselves: a process that reads these finds everything they promise. What was applied and not recorded, because
        # we were killed here, is recorded by the next call.
        for file in known:
            lock.execute(sql.SQL(_RECORD).format(table=table), (file.migration_id, file.sha256, file.contracts))


def _wait_for_others(lock: psycopg.Connection, patience: Patience, end: float, tell: Callable[[str], object]) -> None:
    """Until no other migration of this database runs. Nobody waits behind this one but more of them, so it makes no pauses."""
    at_once = f"{(patience.lock_seconds + patience.pause_seconds) * 1000:.0f}ms"
    while True:
        try:
            with lock.transaction():
                lock.execute("select set_config('lock_timeout', %s, true)", (at_once,))
                lock.execute("select pg_advisory_lock(%s)", (_LOCK_KEY,))  # Outlives the transaction.
                return
        except HELD:
            other = f"another migration of this database, by {holder_of(lock, _LOCK_KEY) or 'a process that has ended'}"
            if monotonic() >= end:
                raise AnotherMigrates(f"waited in vain for {other}; {patience.seconds:g} s are over") from None
            tell(f"waits for {other}")


def _apply(migration: Any, backend: Any, onlooker: psycopg.Connection, patience: Patience) -> None:
    """What the tool's `apply_one` does, in one transaction with the mark that it was done: killed in between, it could not be repeated.

    One that says `-- transactional: false` has none. It is neither cut off nor repeated, since what it has done so far would stay.
    """
    migration.load()
    whole = migration.use_transactions
    with backend.copy() as own:
        connection: psycopg.Connection = own.connection
        settle(connection, lock_seconds=patience.lock_seconds if whole else 0.0)
        (pid,) = connection.execute("select pg_backend_pid()").fetchone() or (0,)  # What a pooler tells is no process.
        with watching(onlooker, pid, lock_seconds=patience.lock_seconds) as held_up_by:
            try:
                with own.transaction() if whole else nullcontext():
                    migration.process_steps(own, "apply")
                    own.log_migration(migration, "apply")
                    own.mark_one(migration, log=False)
            except psycopg.Error as error:
                if whole and isinstance(error, HELD):
                    raise _LockHeld(migration.id, held_up_by()) from error
                raise MigrationFailed(migration.id, _words_of(error)) from error


def _is_of_entering(error: psycopg.Error) -> bool:
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate.startswith(_NOT_LET_IN)


def _words_of(error: psycopg.Error) -> str:
    """The server's own first words, which repeat no data; those of what broke the connection where that is what was noticed last."""
    told: BaseException | None = error
    while told is not None:
        if isinstance(told, psycopg.Error) and told.diag.message_primary:
            return told.diag.message_primary
        told = told.__context__
    return (
        "the connection to the database was lost"
        if isinstance(error, psycopg.OperationalError)
        else type(error).__name__
    )


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
