"""A database is prepared from the operator's secret."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.roles import main


@pytest.fixture
def secret(tmp_path: Path, postgres: Postgres) -> Path:
    """A directory like a mounted Kubernetes secret, with a URL in each file."""
    host, database = postgres.superuser_dsn.partition("?")[2], f"prepared_{uuid4().hex[:12]}"
    (tmp_path / "admin-url").write_text(postgres.superuser_dsn + "\n")
    for service in ("alpha", "beta-two"):
        role = f"{service.replace('-', '_')}_{database[-6:]}"
        for key, user in ((f"{service}-url", role), (f"{service}-owner-url", f"{role}_owner")):
            (tmp_path / key).write_text(f"postgresql://{user}:pass-of-{user}@/{database}?{host}\n")
    return tmp_path


def entered(secret: Path, key: str) -> "psycopg.Connection":
    return psycopg.connect((secret / key).read_text().strip(), autocommit=True)


def test_services_get_schemas_that_only_they_see(secret: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(secret)])
    assert capsys.readouterr().out == "prepared for alpha, beta_two\n"
    with entered(secret, "beta-two-owner-url") as owner:
        owner.execute("create table notes (id int)")
    with entered(secret, "beta-two-url") as app:
        app.execute("insert into notes values (1)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute("create table more (id int)")
    with entered(secret, "alpha-url") as stranger, pytest.raises(psycopg.errors.InsufficientPrivilege):
        stranger.execute("select * from beta_two.notes")


def test_serving_role_has_the_timeouts_that_a_pooler_does_not_pass_on(secret: Path) -> None:
    main([str(secret)])
    timeouts = {
        "statement_timeout": "30s",
        "idle_in_transaction_session_timeout": "1min",
        "client_connection_check_interval": "1s",
    }
    with entered(secret, "alpha-url") as app:
        found = {name: (app.execute(f"show {name}".encode()).fetchone() or ("",))[0] for name in timeouts}
    assert found == timeouts


@pytest.fixture
def managed(secret: Path, postgres: Postgres) -> Iterator[Path]:
    """The same with the admin role of a managed server: no superuser, but it may create
    roles and databases.
    """
    admin, host = f"admin_{uuid4().hex[:12]}", postgres.superuser_dsn.partition("?")[2]
    (secret / "admin-url").write_text(f"postgresql://{admin}:hush@/postgres?{host}\n")
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as server:
        server.execute(
            sql.SQL("create role {} login createrole createdb password 'hush'").format(sql.Identifier(admin))
        )
        yield secret


def test_admin_of_a_managed_server_needs_no_more_than_to_make_roles_and_databases(managed: Path) -> None:
    main([str(managed)])
    main([str(managed)])
    with entered(managed, "alpha-owner-url") as owner:
        owner.execute("create table notes (id int)")
    with entered(managed, "alpha-url") as app:
        app.execute("insert into notes values (1)")
        flags = "rolsuper, rolbypassrls, rolcreatedb, rolcreaterole, rolreplication, rolinherit"
        row = app.execute(f"select {flags} from pg_roles where rolname = current_user").fetchone()
        assert row == (False,) * 6


def test_admin_that_may_not_make_roles_gets_an_error_with_the_missing_right(
    managed: Path, postgres: Postgres
) -> None:
    admin = conninfo_to_dict((managed / "admin-url").read_text().strip())["user"]
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as server:
        server.execute(sql.SQL("alter role {} nocreaterole").format(sql.Identifier(str(admin))))
    with pytest.raises(SystemExit) as caught:
        main([str(managed)])
    assert "may not prepare the database: permission denied to create role" in str(caught.value)


@pytest.mark.parametrize("strength", ["superuser", "bypassrls", "createdb", "createrole", "replication"])
def test_role_that_is_stronger_than_a_service_may_be_is_refused(
    secret: Path, postgres: Postgres, strength: str
) -> None:
    role = str(conninfo_to_dict((secret / "alpha-url").read_text().strip())["user"])
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as server:
        server.execute(sql.SQL(f"create role {{}} {strength}").format(sql.Identifier(role)))
    with pytest.raises(SystemExit) as caught:
        main([str(secret)])
    assert f"cannot be prepared: the role {role} " in str(caught.value)


def test_passwords_are_those_of_the_urls_and_stored_hashed(secret: Path, postgres: Postgres) -> None:
    main([str(secret)])
    with psycopg.connect(postgres.superuser_dsn) as admin, entered(secret, "alpha-url") as app:
        query = "select rolpassword from pg_authid where rolname = %s"
        row = admin.execute(query, (app.info.user,)).fetchone()
    assert row is not None
    assert row[0].startswith("SCRAM-SHA-256$")


def test_preparing_again_changes_nothing(secret: Path) -> None:
    main([str(secret)])
    with entered(secret, "alpha-owner-url") as owner:
        owner.execute("create table kept (id int)")
    main([str(secret)])
    with entered(secret, "alpha-url") as app:
        assert app.execute("select count(*) from kept").fetchone() == (0,)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("admin-url", None, "the file admin-url cannot be read"),
        ("alpha-url", None, "the file alpha-url cannot be read"),
        (
            "admin-url",
            "postgresql://nobody:hush@/postgres?host=/nowhere",
            "refuses the login of the role of admin-url",
        ),
        ("alpha-url", "postgresql://alpha:hush@/elsewhere", "cannot be prepared: ValueError"),
    ],
)
def test_an_error_is_reported_in_one_line_without_a_url(
    secret: Path, file: str, content: str | None, said: str
) -> None:
    (secret / file).unlink()
    if content is not None:
        (secret / file).write_text(content)
    with pytest.raises(SystemExit) as caught:
        main([str(secret)])
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


def test_makes_databases_that_can_be_named_in_any_way(secret: Path) -> None:
    for file in secret.iterdir():
        if file.name != "admin-url":
            url = file.read_text()
            name = url.partition("@/")[2].partition("?")[0]
            file.write_text(make_conninfo(url.strip(), dbname=f"{name} with 'quotes'"))
    main([str(secret)])
    with entered(secret, "alpha-url") as app:
        assert app.info.dbname.endswith("with 'quotes'")


@pytest.mark.parametrize("name", ["admin-url", "alpha-url", "beta-two-owner-url", "alpha-direct-url"])
@pytest.mark.parametrize(
    "url", ["postgresql://alpha:Tr0ub4dor%Zsecret@db/spawnmesh", "alpha:Tr0ub4dor@db:5432/spawnmesh"]
)
def test_a_malformed_url_is_named_and_not_shown(secret: Path, name: str, url: str) -> None:
    (secret / name).write_text(url)
    with pytest.raises(SystemExit) as caught:
        main([str(secret)])
    assert str(caught.value.code).startswith(
        f"the database cannot be prepared: {name} is not a PostgreSQL URL"
    )
    assert "Tr0ub4dor" not in str(caught.value.code)


def test_server_without_citus_is_told_what_it_lacks(secret: Path) -> None:
    with pytest.raises(SystemExit, match="the server has no extension citus; install Citus"):
        main(["--citus", str(secret)])


@pytest.mark.parametrize("arguments", [[], ["--citus"], ["--other", "folder"], ["folder", "--citus"]])
def test_unknown_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="usage"):
        main(arguments)
