"""Migrate the schema of a service to the newest version, once, whatever number of replicas try."""

from collections.abc import Callable
from importlib.resources import as_file, files
from time import monotonic
from typing import Any

import psycopg
from psycopg import sql
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_before_delay, wait_fixed

from spawnmesh_postgres.audit.rights import restrict_audit_rights
from spawnmesh_postgres.channels import create_channels
from spawnmesh_postgres.citus import WrongPlacement, distribute_schema, has_citus
from spawnmesh_postgres.connection import with_timeouts
from spawnmesh_postgres.lock_waits import (
    LOCK_ERRORS,
    LockRetry,
    advisory_lock_holder,
    configure_session,
    watch_blockers,
)
from spawnmesh_postgres.migration_files import CHECKSUMS, MigrationFile, migration_files
from spawnmesh_postgres.yoyo_backend import apply_and_record, yoyo_uri

# "SPWN": one advisory lock for each database. It ends with its session, so a killed process leaves
# none.
_LOCK_KEY = 0x5350574E

_CREATE_CHECKSUMS = """
create table if not exists {table} (
    migration_id text primary key,
    sha256       text not null,
    contracts    boolean not null,
    applied_time timestamptz not null default clock_timestamp()
)
"""

# Only worker_heartbeats uses it. It has no data of tenants.
_CREATE_WORKERS = """
create table if not exists {table} (
    name       text not null,
    process_id text not null,
    seen_time  timestamptz not null default clock_timestamp(),
    primary key (name, process_id)
)
"""

_RECORD = """
insert into {table} (migration_id, sha256, contracts) values (%s, %s, %s)
on conflict (migration_id) do nothing
"""


class MigrationChanged(Exception):
    """An applied migration has another content now. Never edit one: add a new migration."""

    def __init__(self, migration_id: str) -> None:
        super().__init__(
            f"migration {migration_id} was applied with another content; restore it and add a new one"
        )
        self.migration_id = migration_id


class MigrationFailed(Exception):
    """A migration was not applied. Its cause is the error of the driver.

    A transactional migration has left no changes.
    """

    def __init__(self, migration_id: str, why: str) -> None:
        super().__init__(f"{migration_id} was not applied: {why}")
        self.migration_id = migration_id


class MigrationLocked(Exception):
    """Another migration of the same database did not end in time. Nothing was applied."""


class _LockHeld(Exception):
    """An attempt failed because another session holds a lock, which `lock` describes."""

    def __init__(self, migration_id: str, lock: str) -> None:
        super().__init__(f"{migration_id} waits for {lock}")
        self.migration_id = migration_id
        self.lock = lock


_LOCK_RETRY = LockRetry()
# Classes of SQLSTATE. Most failed logins have no SQLSTATE.
_LOGIN_FAILURES = ("28", "3D")


def migrate(
    owner_dsn: str,
    *,
    package: str,
    schema: str,
    retry: LockRetry = _LOCK_RETRY,
    report: Callable[[str], object] = lambda _line: None,
) -> list[str]:
    """Apply the missing `migrations/*.sql` of the package in order, and return their names.

    Each migration runs in a transaction, as the owner of the schema, never as the role of the
    service. On the coordinator of a Citus cluster, the new tables of each migration are distributed
    before the next one runs. There are no downgrades. The function waits for other migrations of
    the database and for locks, as `retry` states; `report` receives a line for each failed attempt.

    Raises MigrationChanged before anything is applied if an applied migration has changed,
    MigrationLocked, MigrationFailed if the database refuses a migration or its locks are never
    free, and WrongPlacement. The migrations before the failed one stay applied.
    """
    applied: list[str] = []

    def report_pause(state: RetryCallState) -> None:
        held = state.outcome.exception() if state.outcome else None
        report(f"{held}; next attempt in {state.upcoming_sleep:g} s")

    attempts = Retrying(
        retry=retry_if_exception_type(_LockHeld),
        # Without a connection: another process may migrate meanwhile.
        wait=wait_fixed(retry.pause_seconds),
        stop=stop_before_delay(retry.seconds),
        before_sleep=report_pause,
        reraise=True,
    )
    try:
        deadline = monotonic() + retry.seconds
        attempts(_apply_rest, with_timeouts(owner_dsn), package, schema, applied, retry, deadline, report)
    except _LockHeld as held:
        why = f"it waited {retry.seconds:g} s for {held.lock}"
        raise MigrationFailed(held.migration_id, why) from held.__cause__
    return applied


def run_migrate_command(
    owner_dsn: str,
    *,
    package: str,
    schema: str,
    retry: LockRetry = _LOCK_RETRY,
) -> None:
    """Run `migrate` as a command. Raises SystemExit with one line if it fails.

    It prints the waits and the result.
    """
    if not owner_dsn:
        raise SystemExit(f"{schema}: set {schema.upper()}_DATABASE_OWNER_URL to migrate")

    def report(line: str) -> None:
        print(f"{schema}: {line}", flush=True)

    try:
        applied = migrate(owner_dsn, package=package, schema=schema, retry=retry, report=report)
    except (MigrationChanged, MigrationFailed, MigrationLocked, WrongPlacement) as error:
        raise SystemExit(f"{schema}: {error}") from None
    except psycopg.Error as error:
        if _is_login_failure(error):
            raise SystemExit(f"{schema}: the database refuses the login of the schema's owner") from None
        raise SystemExit(f"{schema}: the schema cannot be migrated: {_message_of(error)}") from None
    report(f"{', '.join(applied) or 'nothing'} applied")


def _apply_rest(
    owner_dsn: str,
    package: str,
    schema: str,
    applied: list[str],
    retry: LockRetry,
    deadline: float,
    report: Callable[[str], object],
) -> None:
    """Make one attempt.

    The applied migrations are added to `applied`, also if it raises _LockHeld.
    """
    # Imported here: the processes that only serve import this module too.
    from yoyo import get_backend, read_migrations

    table = sql.Identifier(schema, CHECKSUMS)
    known = migration_files(package)
    with (
        psycopg.connect(owner_dsn, autocommit=True) as lock,
        as_file(files(package) / "migrations") as folder,
    ):
        configure_session(lock)
        _wait_for_others(lock, retry, deadline, report)
        lock.execute(sql.SQL(_CREATE_CHECKSUMS).format(table=table))
        lock.execute(sql.SQL(_CREATE_WORKERS).format(table=sql.Identifier(schema, "_spawnmesh_worker")))
        for statement in create_channels(schema):
            lock.execute(statement)
        _refuse_changed(lock, table, known)
        backend = get_backend(yoyo_uri(owner_dsn, schema))
        try:
            configure_session(backend.connection)
            # A row of yoyo: a killed process left it, since only we hold the lock.
            backend.break_lock()
            # A process may have been killed between a migration and this.
            _place_tables(lock, schema)
            restrict_audit_rights(lock, schema)
            for migration in backend.to_apply(read_migrations(str(folder))):
                _apply(migration, backend, lock, retry)
                _place_tables(lock, schema)
                restrict_audit_rights(lock, schema)
                applied.append(migration.id)
        finally:
            backend.connection.close()
        # After the migrations: a process that reads the checksums finds what they promise. If the
        # process is killed here, the next call records them.
        for file in known:
            lock.execute(
                sql.SQL(_RECORD).format(table=table), (file.migration_id, file.sha256, file.contracts)
            )


def _place_tables(connection: psycopg.Connection, schema: str) -> None:
    if has_citus(connection):
        distribute_schema(connection, schema)


def _wait_for_others(
    lock: psycopg.Connection, retry: LockRetry, deadline: float, report: Callable[[str], object]
) -> None:
    """Wait until no other migration of this database runs.

    Only other migrations wait behind this one, so it makes no pauses.
    """
    timeout = f"{(retry.lock_seconds + retry.pause_seconds) * 1000:.0f}ms"
    while True:
        try:
            with lock.transaction():
                lock.execute("select set_config('lock_timeout', %s, true)", (timeout,))
                # Held until the session ends.
                lock.execute("select pg_advisory_lock(%s)", (_LOCK_KEY,))
                return
        except LOCK_ERRORS:
            holder = advisory_lock_holder(lock, _LOCK_KEY) or "a process that has ended"
            other = f"another migration of this database, by {holder}"
            if monotonic() >= deadline:
                raise MigrationLocked(f"waited {retry.seconds:g} s for {other}") from None
            report(f"waiting for {other}")


def _apply(migration: Any, backend: Any, observer: psycopg.Connection, retry: LockRetry) -> None:
    """Apply a migration and record it in the same transaction.

    A migration with `-- transactional: false` has no transaction. It has no lock timeout and is not
    repeated, since its completed statements stay.
    """
    migration.load()
    transactional = migration.use_transactions
    with backend.copy() as own:
        connection: psycopg.Connection = own.connection
        configure_session(connection, lock_seconds=retry.lock_seconds if transactional else 0.0)
        (pid,) = connection.execute("select pg_backend_pid()").fetchone() or (0,)
        with watch_blockers(observer, pid, lock_seconds=retry.lock_seconds) as blocker:
            try:
                apply_and_record(migration, own)
            except psycopg.Error as error:
                if transactional and isinstance(error, LOCK_ERRORS):
                    raise _LockHeld(migration.id, blocker()) from error
                raise MigrationFailed(migration.id, _message_of(error)) from error


def _is_login_failure(error: psycopg.Error) -> bool:
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate.startswith(_LOGIN_FAILURES)


def _message_of(error: psycopg.Error) -> str:
    """Return the primary message of the server, which contains no data.

    If the connection was lost, it is the message of the error that broke it.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, psycopg.Error) and cause.diag.message_primary:
            return cause.diag.message_primary
        cause = cause.__context__
    return (
        "the connection to the database was lost"
        if isinstance(error, psycopg.OperationalError)
        else type(error).__name__
    )


def _refuse_changed(
    connection: psycopg.Connection, table: sql.Identifier, known: tuple[MigrationFile, ...]
) -> None:
    found = connection.execute(sql.SQL("select migration_id, sha256 from {}").format(table)).fetchall()
    recorded: dict[str, str] = dict(found)
    for file in known:
        if recorded.get(file.migration_id, file.sha256) != file.sha256:
            raise MigrationChanged(file.migration_id)
