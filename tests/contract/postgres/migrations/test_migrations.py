"""Migrations bring a schema to the newest version once, and refuse a changed history."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.migration_files import migration_files
from spawnmesh_postgres.migrations import MigrationChanged, MigrationFailed, migrate, run_migrate_command
from spawnmesh_postgres.schema_version import wait_for_schema
from spawnmesh_postgres.yoyo_backend import yoyo_uri
from yoyo import get_backend, read_migrations

from tests.support.postgres.migrating import Package, empty_schema

SERVICES = ("session", "attachment_blob", "transcript", "model_router", "hook")

SHAPE = """
select 'column', table_name, column_name, data_type || coalesce(column_default, '') || is_nullable
  from information_schema.columns where table_schema = current_schema() and table_name not like '\\_yoyo%'
                                    and table_name not like 'yoyo%'
union all select 'index', tablename, indexname, indexdef from pg_indexes where schemaname = current_schema()
union all select 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
  from pg_constraint where connamespace = current_schema()::regnamespace
union all select 'policy', tablename, policyname, coalesce(qual, '') || coalesce(with_check, '')
  from pg_policies where schemaname = current_schema()
union all select 'function', proname, pg_get_function_identity_arguments(oid), pg_get_functiondef(oid)
  from pg_proc where pronamespace = current_schema()::regnamespace and prokind = 'f'
union all select 'table', relname, relrowsecurity::text, relforcerowsecurity::text || coalesce(relacl::text, '')
  from pg_class where relnamespace = current_schema()::regnamespace and relkind = 'r'
order by 1, 2, 3, 4
"""


@pytest.fixture
def database(postgres: Postgres) -> Callable[[str], ServiceDsn]:
    """Create a database with an empty schema of that name."""

    return lambda schema: empty_schema(postgres, schema)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    monkeypatch.syspath_prepend(tmp_path)
    made = Package(tmp_path)
    yield made
    sys.modules.pop(made.name, None)


def shape(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(SHAPE).fetchall()


@pytest.mark.parametrize("schema", SERVICES)
def test_schema_migrated_release_by_release_equals_a_fresh_one(
    database: Callable[[str], ServiceDsn], package: Package, schema: str
) -> None:
    fresh, grown = database(schema), database(schema)
    migrate(fresh.owner, package=f"spawnmesh_{schema}", schema=schema)
    sources = sorted((files(f"spawnmesh_{schema}") / "migrations").iterdir(), key=lambda file: file.name)
    for source in sources:
        package.add(source.name.removesuffix(".sql"), source.read_text())
        assert migrate(grown.owner, package=package.name, schema=schema) == [source.name.removesuffix(".sql")]
    assert shape(grown.owner) == shape(fresh.owner)
    assert len(shape(fresh.owner)) > 10


@pytest.mark.parametrize("schema", SERVICES)
def test_migrating_again_does_nothing(database: Callable[[str], ServiceDsn], schema: str) -> None:
    dsn = database(schema)
    assert migrate(dsn.owner, package=f"spawnmesh_{schema}", schema=schema)
    before = shape(dsn.owner)
    assert migrate(dsn.owner, package=f"spawnmesh_{schema}", schema=schema) == []
    assert shape(dsn.owner) == before


async def test_two_who_migrate_at_once_do_it_once(
    database: Callable[[str], ServiceDsn], package: Package
) -> None:
    dsn = database("hook")
    for number in range(1, 5):
        package.add(f"000{number}_step", f"create table step_{number} (id int); select pg_sleep(0.05);")
    both = await asyncio.gather(
        *(asyncio.to_thread(migrate, dsn.owner, package=package.name, schema="hook") for _ in range(4))
    )
    assert sorted(both, key=len) == [[], [], [], ["0001_step", "0002_step", "0003_step", "0004_step"]]


def test_migration_that_fails_leaves_those_before_it_and_nothing_of_itself(
    database: Callable[[str], ServiceDsn], package: Package
) -> None:
    dsn = database("hook")
    package.add("0001_good", "create table good (id int);")
    package.add("0002_bad", "create table half (id int); select 1 / 0;")
    with pytest.raises(MigrationFailed, match="0002_bad") as failed:
        migrate(dsn.owner, package=package.name, schema="hook")
    assert isinstance(failed.value.__cause__, psycopg.errors.DivisionByZero)
    tables = {row[1] for row in shape(dsn.owner) if row[0] == "table"}
    assert "good" in tables
    assert "half" not in tables
    package.add("0002_bad", "create table whole (id int);")
    assert migrate(dsn.owner, package=package.name, schema="hook") == ["0002_bad"]


def test_applied_migration_that_was_edited_is_refused_before_anything_happens(
    database: Callable[[str], ServiceDsn], package: Package
) -> None:
    dsn = database("hook")
    package.add("0001_first", "create table first (id int);")
    migrate(dsn.owner, package=package.name, schema="hook")
    package.add("0001_first", "create table first (id bigint);")
    package.add("0002_second", "create table second (id int);")
    with pytest.raises(MigrationChanged, match="0001_first"):
        migrate(dsn.owner, package=package.name, schema="hook")
    assert "second" not in {row[1] for row in shape(dsn.owner)}
    with pytest.raises(SystemExit, match=r"^hook: migration 0001_first was applied with another content"):
        run_migrate_command(dsn.owner, package=package.name, schema="hook")


def test_line_ends_are_no_edit(database: Callable[[str], ServiceDsn], package: Package) -> None:
    dsn = database("hook")
    package.add("0001_first", "create table first (id int);\n")
    migrate(dsn.owner, package=package.name, schema="hook")
    (package.folder / "0001_first.sql").write_bytes(b"create table first (id int);\r\n")
    assert migrate(dsn.owner, package=package.name, schema="hook") == []


async def test_migrator_killed_before_it_recorded_is_finished_by_the_next(
    database: Callable[[str], ServiceDsn], package: Package
) -> None:
    dsn = database("hook")
    package.add("0001_first", "create table first (id int);")
    migrate(dsn.owner, package=package.name, schema="hook")
    with psycopg.connect(dsn.owner) as connection:
        connection.execute("truncate _yoyo_checksum")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await wait_for_schema(dsn.app, package=package.name)
    assert migrate(dsn.owner, package=package.name, schema="hook") == []
    await wait_for_schema(dsn.app, package=package.name)


async def test_waiting_ends_when_the_schema_comes(
    database: Callable[[str], ServiceDsn], package: Package
) -> None:
    dsn = database("hook")
    package.add("0001_first", "create table first (id int);")
    waiting = asyncio.create_task(wait_for_schema(dsn.app, package=package.name))
    await asyncio.wait([waiting], timeout=0.3)
    assert not waiting.done()
    await asyncio.to_thread(migrate, dsn.owner, package=package.name, schema="hook")
    async with asyncio.timeout(60):
        await waiting


async def test_old_process_runs_on_an_expanded_schema_and_not_on_a_contracted_one(
    database: Callable[[str], ServiceDsn], package: Package, tmp_path: Path
) -> None:
    dsn = database("hook")
    package.add("0001_first", "create table first (id int, old int);")
    old = Package(tmp_path)
    old.add("0001_first", "create table first (id int, old int);")
    package.add("0002_expand", "alter table first add column new int;")
    migrate(dsn.owner, package=package.name, schema="hook")
    async with asyncio.timeout(60):
        await wait_for_schema(dsn.app, package=old.name)
    package.add(
        "0003_contract",
        "-- contracts: `old` is read by no release since 0002_expand\nalter table first drop old;",
    )
    migrate(dsn.owner, package=package.name, schema="hook")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await wait_for_schema(dsn.app, package=old.name)
    await wait_for_schema(dsn.app, package=package.name)


def test_migration_that_cannot_be_marked_as_done_leaves_nothing_and_is_repeated(
    database: Callable[[str], ServiceDsn], package: Package
) -> None:
    dsn = database("hook")
    package.add("0001_first", "create table first (id int);")
    migrate(dsn.owner, package=package.name, schema="hook")
    package.add("0002_second", "create table second (id int);")
    with psycopg.connect(dsn.owner, autocommit=True) as connection:
        connection.execute(
            "alter table _yoyo_migration add constraint no_more check (migration_id < '0002') not valid"
        )
        with pytest.raises(MigrationFailed, match="0002_second"):
            migrate(dsn.owner, package=package.name, schema="hook")
        connection.execute("alter table _yoyo_migration drop constraint no_more")
    assert migrate(dsn.owner, package=package.name, schema="hook") == ["0002_second"]


def test_one_transaction_of_our_own_is_still_needed(
    database: Callable[[str], ServiceDsn], package: Package
) -> None:
    """Remove `apply_and_record` when yoyo itself applies and records in one transaction."""
    dsn = database("hook")
    package.add("0001_first", "create table first (id int);")
    migrate(dsn.owner, package=package.name, schema="hook")
    package.add("0002_second", "create table second (id int);")
    with psycopg.connect(dsn.owner, autocommit=True) as connection:
        connection.execute(
            "alter table _yoyo_migration add constraint no_more check (migration_id < '0002') not valid"
        )
        backend = get_backend(yoyo_uri(dsn.owner, "hook"))
        with closing(backend.connection), pytest.raises(psycopg.errors.CheckViolation):
            backend.apply_one(backend.to_apply(read_migrations(str(package.folder)))[0])
        assert connection.execute("select to_regclass('second')").fetchone() != (None,)


def test_lock_of_the_tool_that_a_killed_migration_left_keeps_nobody_out(
    database: Callable[[str], ServiceDsn], package: Package
) -> None:
    """yoyo takes this lock once in the life of a schema, to create its own tables."""
    dsn = database("hook")
    package.add("0001_first", "create table first (id int);")
    with psycopg.connect(dsn.owner) as connection:
        connection.execute(
            "create table yoyo_lock (locked int default 1 primary key, ctime timestamp, pid int not null)"
        )
        connection.execute("insert into yoyo_lock (pid) values (1)")
    assert migrate(dsn.owner, package=package.name, schema="hook") == ["0001_first"]


def test_migration_without_a_transaction_is_applied_and_marked(
    database: Callable[[str], ServiceDsn], package: Package
) -> None:
    dsn = database("hook")
    package.add("0001_first", "create table first (id int);")
    package.add("0002_index", "-- transactional: false\ncreate index concurrently first_idx on first (id);")
    assert migrate(dsn.owner, package=package.name, schema="hook") == ["0001_first", "0002_index"]
    assert migrate(dsn.owner, package=package.name, schema="hook") == []


OUT_OF_ROOM = "do $$ begin raise exception 'no room' using errcode = 'disk_full', detail = 'a row'; end $$;"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OUT_OF_ROOM, "no room"),
        ("select 1 / 0;", "division by zero"),
        (
            "select pg_terminate_backend(pg_backend_pid());",
            "terminating connection due to administrator command",
        ),
    ],
    ids=["room", "defect", "ended"],
)
def test_the_message_of_the_server_is_reported_with_the_migration_id(
    database: Callable[[str], ServiceDsn], package: Package, text: str, words: str
) -> None:
    package.add("0001_first", text)
    with pytest.raises(SystemExit, match=rf"^hook: 0001_first was not applied: {words}$"):
        run_migrate_command(database("hook").owner, package=package.name, schema="hook")


def test_the_message_of_the_server_before_any_migration_is_reported(
    database: Callable[[str], ServiceDsn], package: Package, postgres: Postgres
) -> None:
    dsn = database("hook")
    package.add("0001_first", "create table first (id int);")
    with psycopg.connect(
        make_conninfo(postgres.superuser_dsn, dbname=conninfo_to_dict(dsn.owner)["dbname"])
    ) as link:
        link.execute("alter schema hook owner to postgres")
        link.execute("grant usage on schema hook to hook_owner")
    with pytest.raises(
        SystemExit, match=r"^hook: the schema cannot be migrated: permission denied for schema hook$"
    ):
        run_migrate_command(dsn.owner, package=package.name, schema="hook")


@pytest.mark.parametrize(
    "changed", [{"user": "nobody_here"}, {"dbname": "nowhere"}, {"host": "/nowhere"}], ids=str
)
def test_a_refused_login_of_the_owner_is_reported(
    database: Callable[[str], ServiceDsn], package: Package, changed: dict[str, str]
) -> None:
    package.add("0001_first", "create table first (id int);")
    with pytest.raises(SystemExit, match=r"^hook: the database refuses the login of the schema's owner$"):
        run_migrate_command(
            make_conninfo(database("hook").owner, **changed), package=package.name, schema="hook"
        )


def test_a_missing_owner_url_is_reported_in_one_line() -> None:
    with pytest.raises(SystemExit, match=r"^hook: set HOOK_DATABASE_OWNER_URL to migrate$"):
        run_migrate_command("", package="spawnmesh_hook", schema="hook")


@pytest.mark.parametrize("schema", SERVICES)
def test_migrations_are_numbered_without_a_gap(schema: str) -> None:
    numbers = [int(file.migration_id[:4]) for file in migration_files(f"spawnmesh_{schema}")]
    assert numbers == list(range(1, len(numbers) + 1))
