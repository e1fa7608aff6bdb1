"""A migration that waits for a lock blocks others only briefly, names the blocker and
completes later.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen
from time import monotonic, sleep

import psycopg
import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.lock_waits import LockRetry
from spawnmesh_postgres.migrations import MigrationFailed, MigrationLocked, migrate, run_migrate_command

from tests.support.postgres.migrating import Package, empty_schema

TABLE = "create table things (id int); create table others (id int);"
# The table that it creates before it meets the lock must be gone when it is tried again.
MORE = "create table more (id int); alter table things add column colour text;"
SHORT_WAITS = LockRetry(lock_seconds=0.4, pause_seconds=0.6, seconds=3600.0)
FAILING_SOON = LockRetry(lock_seconds=0.8, pause_seconds=1.2, seconds=4.0)
WAITING = (
    "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
)
MIGRATING_KEY = 0x5350574E


@pytest.fixture
def dsn(postgres: Postgres) -> ServiceDsn:
    return empty_schema(postgres, "hook")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: ServiceDsn) -> Iterator[Package]:
    """A package whose first migration is applied."""
    monkeypatch.syspath_prepend(tmp_path)
    made = Package(tmp_path)
    made.add("0001_first", TABLE)
    migrate(dsn.owner, package=made.name, schema="hook")
    yield made
    sys.modules.pop(made.name, None)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@contextmanager
def held(
    dsn: ServiceDsn, statement: str = "lock table things in access share mode"
) -> Iterator[psycopg.Connection]:
    """Hold the locks of the statement in an open transaction, as a dump does."""
    with psycopg.connect(dsn.owner, application_name="pg_dump") as holder:
        holder.execute(statement.encode())
        yield holder


def until(true: Callable[[], bool], within_seconds: float = 60.0) -> None:
    end = monotonic() + within_seconds
    while not true():
        assert monotonic() < end, "it never came"
        sleep(0.02)


def waiting(dsn: ServiceDsn) -> int:
    with psycopg.connect(dsn.owner) as connection:
        return (connection.execute(WAITING.encode()).fetchone() or (0,))[0]


def test_others_continue_while_a_migration_waits_and_it_completes_when_the_lock_is_free(
    dsn: ServiceDsn, package: Package, threads: ThreadPoolExecutor
) -> None:
    package.add("0002_more", MORE)
    another = Package(package.root)
    another.add("0001_first", TABLE)
    told: list[str] = []
    with held(dsn) as holder, psycopg.connect(dsn.app, autocommit=True) as app:
        pid = holder.info.backend_pid
        app.execute("set statement_timeout = '60s'")
        migrating = threads.submit(
            migrate, dsn.owner, package=package.name, schema="hook", retry=SHORT_WAITS, report=told.append
        )
        met = 0
        while len(told) < 3 or not met:
            assert not migrating.done()
            met += waiting(dsn)
            app.execute("select * from things")
        assert migrate(dsn.owner, package=another.name, schema="hook", retry=SHORT_WAITS) == []
        assert app.execute("select to_regclass('more')").fetchone() == (None,)
    assert migrating.result(timeout=60) == ["0002_more"]
    with psycopg.connect(dsn.owner) as owner:
        owner.execute("select colour from things")
    lock = f"a lock on things that process {pid} (pg_dump as hook_owner) holds"
    assert f"0002_more waits for {lock}; next attempt in 0.6 s" in told


def test_migration_whose_lock_is_never_free_names_the_blocker_and_blocks_no_one(
    dsn: ServiceDsn, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    package.add("0002_fine", "create table fine (id int);")
    package.add("0003_more", MORE)
    with held(dsn) as holder:
        pid = holder.info.backend_pid
        with pytest.raises(SystemExit) as ended:
            run_migrate_command(dsn.owner, package=package.name, schema="hook", retry=FAILING_SOON)
        assert waiting(dsn) == 0
    lock = f"a lock on things that process {pid} (pg_dump as hook_owner) holds"
    assert str(ended.value) == f"hook: 0003_more was not applied: it waited 4 s for {lock}"
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"hook: 0003_more waits for {lock}; next attempt in 1.2 s"], (
        "once, since it pauses between tries"
    )
    assert migrate(dsn.owner, package=package.name, schema="hook") == ["0003_more"], (
        "the one before it was applied"
    )


def test_row_that_is_locked_is_waited_for_too(dsn: ServiceDsn, package: Package) -> None:
    with psycopg.connect(dsn.owner) as owner:
        owner.execute("insert into things values (1)")
    package.add("0002_rows", "update things set id = 2;")
    with held(dsn, "select * from things for update") as holder:
        with pytest.raises(MigrationFailed) as failed:
            migrate(dsn.owner, package=package.name, schema="hook", retry=FAILING_SOON)
        assert f"it waited 4 s for a lock that process {holder.info.backend_pid} (" in str(failed.value)


def test_deadlock_is_tried_again(dsn: ServiceDsn, package: Package, threads: ThreadPoolExecutor) -> None:
    """The other session waits first, for longer than the deadlock timeout: the server
    then cancels the migration.
    """
    package.add(
        "0002_both",
        "alter table others add column a int; select pg_sleep(4); alter table things add column a int;",
    )
    told: list[str] = []
    patience = LockRetry(lock_seconds=20.0, pause_seconds=0.2, seconds=60.0)
    with held(dsn) as holder:
        migrating = threads.submit(
            migrate, dsn.owner, package=package.name, schema="hook", retry=patience, report=told.append
        )
        until(lambda: bool(altering(dsn, "others")))
        holder.execute("lock table others in access share mode")
        until(lambda: bool(told))
    assert migrating.result(timeout=60) == ["0002_both"]


def altering(dsn: ServiceDsn, table: str) -> bool:
    asked = (
        "select 1 from pg_locks where granted and mode = 'AccessExclusiveLock' and relation = %s::regclass"
    )
    with psycopg.connect(dsn.owner) as connection:
        return connection.execute(asked.encode(), (table,)).fetchone() is not None


def test_migration_reports_that_it_waits_for_another_one_and_completes(
    dsn: ServiceDsn, package: Package, threads: ThreadPoolExecutor
) -> None:
    package.add("0002_more", MORE)
    told: list[str] = []
    with held(dsn, f"select pg_advisory_xact_lock({MIGRATING_KEY})") as holder:
        migrating = threads.submit(
            migrate, dsn.owner, package=package.name, schema="hook", retry=SHORT_WAITS, report=told.append
        )
        until(lambda: bool(told))
        with pytest.raises(MigrationLocked) as ended:
            migrate(dsn.owner, package=package.name, schema="hook", retry=FAILING_SOON)
        other = f"another migration of this database, by process {holder.info.backend_pid} (pg_dump as hook_owner)"
    assert str(ended.value) == f"waited 4 s for {other}"
    assert f"waiting for {other}" in told
    assert migrating.result(timeout=60) == ["0002_more"]


@pytest.mark.parametrize(
    "statement",
    ["lock table things in access share mode", f"select pg_advisory_xact_lock({MIGRATING_KEY})"],
    ids=["a table", "another migration"],
)
def test_killed_migration_leaves_nothing_that_waits(
    dsn: ServiceDsn, package: Package, statement: str
) -> None:
    """Its retry policy sets no limit here: the server ends its backend because the
    client is gone.
    """
    package.add("0002_more", MORE)
    retry = "LockRetry(lock_seconds=600, seconds=600)"
    program = (
        "from spawnmesh_postgres.lock_waits import LockRetry\nfrom spawnmesh_postgres.migrations import migrate\n"
        f"migrate({dsn.owner!r}, package={package.name!r}, schema='hook', retry={retry})"
    )
    with held(dsn, statement), psycopg.connect(dsn.app, autocommit=True) as app:
        process = Popen([sys.executable, "-c", program], cwd=package.root, stdout=DEVNULL)
        try:
            until(lambda: waiting(dsn) > 0)
        finally:
            process.kill()
            process.wait()
        until(lambda: waiting(dsn) == 0)
        app.execute("select * from things")
    assert migrate(dsn.owner, package=package.name, schema="hook", retry=SHORT_WAITS) == ["0002_more"]


def test_migration_that_needs_no_lock_that_is_held_is_not_cut_off(dsn: ServiceDsn, package: Package) -> None:
    package.add("0002_slow", "select pg_sleep(1.2); create table more (id int);")
    with held(dsn):
        assert migrate(dsn.owner, package=package.name, schema="hook", retry=SHORT_WAITS) == ["0002_slow"]


def test_migration_without_a_transaction_waits_as_long_as_it_takes(
    dsn: ServiceDsn, package: Package, threads: ThreadPoolExecutor
) -> None:
    """It waits for writers, which blocks no one.

    If it were cancelled, it would leave an invalid index.
    """
    package.add("0002_index", "-- transactional: false\ncreate index concurrently things_idx on things (id);")
    migrating: Future[list[str]]
    with held(dsn, "insert into things values (1)"):
        migrating = threads.submit(migrate, dsn.owner, package=package.name, schema="hook", retry=SHORT_WAITS)
        until(lambda: waiting(dsn) > 0)
        sleep(3 * SHORT_WAITS.lock_seconds)
        assert not migrating.done()
    assert migrating.result(timeout=60) == ["0002_index"]


def test_transaction_of_a_migration_whose_machine_is_gone_has_an_end(
    dsn: ServiceDsn, package: Package
) -> None:
    package.add(
        "0002_seen",
        "create table seen as select current_setting('idle_in_transaction_session_timeout') as s;",
    )
    migrate(dsn.owner, package=package.name, schema="hook")
    with psycopg.connect(dsn.owner) as owner:
        assert owner.execute("select s from seen").fetchone() == ("1min",)
