"""The embedded PostgreSQL, and the wall between the services' schemas."""

import signal
import tempfile
from pathlib import Path

import psycopg
import pytest
from psycopg import errors
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import create_service_database
from spawnmesh_devstack.watchdog import Watchdog


@pytest.fixture(scope="module")
def watchdog():
    with Watchdog() as dog:
        yield dog


@pytest.fixture(scope="module")
def directory():
    """A directory outside of pytest's: under root, another pytest that starts closes those to the
    account of PostgreSQL.
    """
    with tempfile.TemporaryDirectory(prefix="spawnmesh-test-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
async def postgres(directory, watchdog):
    async with Postgres(directory / "data", directory / "log", watchdog, lambda line: None) as server:
        yield server


@pytest.fixture(scope="module")
async def dsns(postgres):
    found = await create_service_database(postgres.superuser_dsn, ["session", "attachment_blob"])
    async with await psycopg.AsyncConnection.connect(found["session"].owner) as owner:
        await owner.execute(
            "CREATE TABLE runs (id bigint GENERATED ALWAYS AS IDENTITY, note text, serial bigserial)"
        )
        await owner.execute("CREATE FUNCTION answer() RETURNS int LANGUAGE sql AS 'SELECT 42'")
    return found


async def execute(dsn, statement):
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        cursor = await connection.execute(statement)
        return await cursor.fetchall() if cursor.description else []


async def test_the_app_role_uses_what_its_owner_makes(dsns):
    app = dsns["session"].app

    await execute(app, "INSERT INTO runs (note) VALUES ('mine')")
    await execute(app, "UPDATE runs SET note = 'ours'")

    assert await execute(app, "SELECT id, note, serial FROM session.runs") == [(1, "ours", 1)]
    assert await execute(app, "SELECT answer()") == [(42,)]
    await execute(app, "DELETE FROM runs")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM session.runs",
        "INSERT INTO session.runs (note) VALUES ('theirs')",
        "DELETE FROM session.runs",
        "SELECT session.answer()",
        "CREATE TABLE session.planted ()",
        "CREATE TABLE public.planted ()",
        "CREATE SCHEMA planted",
        "SET ROLE session",
        "SET ROLE session_owner",
    ],
)
@pytest.mark.parametrize("role", ["app", "owner"])
async def test_a_service_cannot_touch_what_is_anothers_or_everybodys(dsns, role, statement):
    with pytest.raises(errors.InsufficientPrivilege):
        await execute(getattr(dsns["attachment_blob"], role), statement)


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE session.x ()", "DROP TABLE runs", "ALTER TABLE runs ADD x int"]
)
async def test_the_app_role_cannot_change_its_own_schema(dsns, statement):
    with pytest.raises(errors.InsufficientPrivilege):
        await execute(dsns["session"].app, statement)


async def test_a_function_is_for_its_own_service_even_where_the_schema_lets_pass(dsns):
    superuser = dsns["session"].app.replace("session@", "postgres@", 1)
    asked = "SELECT has_function_privilege(role, 'session.answer()', 'EXECUTE') FROM unnest(%s::text[]) role"

    async with await psycopg.AsyncConnection.connect(superuser) as connection:
        found = await (await connection.execute(asked, (["session", "attachment_blob"],))).fetchall()

    assert found == [(True,), (False,)]


async def test_no_service_role_escapes_row_level_security(dsns, postgres):
    rows = await execute(
        postgres.superuser_dsn, "SELECT rolname FROM pg_roles WHERE rolbypassrls OR rolsuper"
    )

    assert rows == [("postgres",)]


async def test_creating_the_database_again_changes_nothing_and_adds_new_services(dsns, postgres):
    await execute(dsns["session"].owner, "CREATE TABLE log (line text); REVOKE DELETE ON log FROM session")

    again = await create_service_database(postgres.superuser_dsn, ["session", "attachment_blob", "hook"])

    assert again["session"] == dsns["session"]
    assert await execute(again["hook"].app, "SELECT current_schema()") == [("hook",)]
    with pytest.raises(errors.InsufficientPrivilege):
        await execute(dsns["session"].app, "DELETE FROM log")


async def test_a_name_that_is_no_plain_word_is_refused(postgres):
    with pytest.raises(StackError, match="cannot name a database role"):
        await create_service_database(postgres.superuser_dsn, ['x"; DROP TABLE y; --'])


async def test_settings_are_those_of_a_durable_server_with_room_for_every_pool(postgres):
    names = ("max_connections", "synchronous_commit", "fsync", "listen_addresses")
    found = await execute(
        postgres.superuser_dsn, f"SELECT name, setting FROM pg_settings WHERE name IN {names}"
    )

    assert dict(found) == {
        "max_connections": "200",
        "synchronous_commit": "on",
        "fsync": "on",
        "listen_addresses": "",
    }


async def test_data_and_address_outlive_a_stop_with_open_connections_and_a_crash(directory, watchdog):
    deep = directory / ("d" * 100)  # too long for the path of a socket
    lines = []
    async with Postgres(deep / "data", deep / "log", watchdog, lines.append) as server:
        dsn = server.superuser_dsn
        await execute(dsn, "CREATE TABLE kept (n int)")
        open_connection = await psycopg.AsyncConnection.connect(dsn)
        await server.stop()
        assert server.process.returncode == 0
        await open_connection.close()

        await server.start()
        await execute(dsn, "INSERT INTO kept VALUES (1)")
        await server.process.kill()
        assert server.process.returncode == -signal.SIGKILL
        deep.chmod(0o700)  # as a careful person does; for root, PostgreSQL runs as somebody else

        await server.start()
        assert await execute(dsn, "SELECT n FROM kept") == [(1,)]
    assert lines.count("preparing PostgreSQL's data directory") == 1


async def test_a_second_server_on_the_same_data_is_refused_in_one_line(postgres, tmp_path, watchdog):
    data = await execute(postgres.superuser_dsn, "SHOW data_directory")
    second = Postgres(
        Path(data[0][0]), tmp_path / "log", watchdog, lambda line: None, former_wait_seconds=0.1
    )

    with pytest.raises(StackError, match="already uses the data directory"):
        await second.start()
