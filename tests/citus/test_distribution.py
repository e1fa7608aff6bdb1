"""The migration of a schema distributes it over a Citus cluster, and keeps it distributed."""

from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.citus import WrongPlacement, list_placements
from spawnmesh_postgres.migrations import migrate
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database

from tests.support.citus.cluster import Cluster, create_database, register
from tests.support.postgres.migrating import Package
from tests.support.postgres.services import SERVICES_WITH_DATABASE

AUDIT = {"audit_chains", "audit_events"}
STAY = {
    "session": {"tenants", "tenant_deletions", "run_queue", "jobs", "revoked_tokens", *AUDIT},
    "hook": {"jobs", "tenant_work", *AUDIT},
    "attachment_blob": {"jobs", "tenant_work", *AUDIT},
    "transcript": {"jobs", "tenant_work", *AUDIT},
    "model_router": {"cooldowns", "unconfirmed_failures", *AUDIT},
}
PLACED = """
    select c.relname, p.colocationid from pg_dist_partition p join pg_class c on c.oid = p.logicalrelid
    where c.relnamespace = current_schema()::regnamespace and p.partmethod = 'h'
"""
FIRST = """
create table heads (tenant_id text primary key, seq bigint not null);
create table entries (tenant_id text, seq bigint, primary key (tenant_id, seq),
    foreign key (tenant_id) references heads on delete cascade);
create table queue (tenant_id text, id text, primary key (tenant_id, id));
comment on table queue is 'citus: local';
alter table heads enable row level security;
alter table heads force row level security;
create policy tenant on heads using (tenant_id = current_setting('spawnmesh.tenant', true));
"""


@pytest.mark.parametrize("service", SERVICES_WITH_DATABASE)
def test_tables_of_tenants_are_distributed_together(migrated: dict[str, ServiceDsn], service: str) -> None:
    with psycopg.connect(migrated[service].owner) as connection:
        tables = list_placements(connection, service)
        placed = dict(connection.execute(PLACED).fetchall())
        of_tenants = connection.execute(
            "select table_name from information_schema.columns join information_schema.tables"
            " using (table_schema, table_name) where table_type = 'BASE TABLE' and column_name = 'tenant_id'"
            " and table_schema = current_schema()"
        ).fetchall()
    assert {table.name for table in tables if table.is_distributed} == placed.keys()
    assert len(set(placed.values())) == 1, "co-located"
    assert {name for (name,) in of_tenants} - placed.keys() == STAY[service]


def test_migrating_again_places_nothing(migrated: dict[str, ServiceDsn]) -> None:
    owner = migrated["hook"].owner
    with psycopg.connect(owner) as connection:
        before = connection.execute(PLACED).fetchall()
        assert migrate(owner, package="spawnmesh_hook", schema="hook") == []
        assert connection.execute(PLACED).fetchall() == before


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    made = Package(tmp_path)
    made.add("0001_first", FIRST)
    monkeypatch.syspath_prepend(str(tmp_path))
    return made


@pytest.fixture
def notes(cluster: Cluster) -> ServiceDsn:
    """An empty schema in a new database of the cluster."""
    database, role = f"notes_{uuid4().hex[:8]}", f"notes_{uuid4().hex[:8]}"
    app, owner = (
        make_conninfo(cluster.superuser_dsn, user=user, dbname=database) for user in (role, f"{role}_owner")
    )
    create_database(cluster, database)
    prepare_database(cluster.coordinator.superuser_dsn, {"notes": DatabaseUrls(app, owner)})
    return ServiceDsn(app, owner)


@pytest.fixture
def filled(cluster: Cluster, package: Package) -> ServiceDsn:
    """A schema with rows in a new database, filled before the database became a cluster."""
    database, role = f"notes_{uuid4().hex[:8]}", f"notes_{uuid4().hex[:8]}"
    app, owner = (
        make_conninfo(cluster.superuser_dsn, user=user, dbname=database) for user in (role, f"{role}_owner")
    )
    create_database(cluster, database, is_registered=False)
    urls = {"notes": DatabaseUrls(app, owner)}
    prepare_database(cluster.coordinator.superuser_dsn, urls)
    migrate(owner, package=package.name, schema="notes")
    with psycopg.connect(app) as connection:
        connection.execute("set local spawnmesh.tenant = 't-one'")
        connection.execute("insert into heads values ('t-one', 7)")
        connection.execute("insert into entries values ('t-one', 1), ('t-one', 2)")
    register(cluster, database)
    prepare_database(cluster.coordinator.superuser_dsn, urls, citus=True)
    return ServiceDsn(app, owner)


def kept_bytes(dsn: ServiceDsn) -> list[int]:
    """Return the sizes of the two tables on the coordinator, without those of their shards."""
    with psycopg.connect(dsn.owner) as connection:
        query = "select pg_relation_size(name) from unnest(array['heads', 'entries']::regclass[]) name"
        return [size for (size,) in connection.execute(query).fetchall()]


def assert_rows_are_on_the_nodes(dsn: ServiceDsn) -> None:
    with psycopg.connect(dsn.app) as connection:
        for query, expected in (
            ("set local spawnmesh.tenant = 't-other'", None),
            ("select count(*) from heads", 0),
            ("set local spawnmesh.tenant = 't-one'", None),
            ("select sum(seq) from heads where tenant_id = 't-one'", 7),
            ("select count(*) from entries where tenant_id = 't-one'", 2),
        ):
            cursor = connection.execute(query.encode())
            assert expected is None or cursor.fetchone() == (expected,)
    assert kept_bytes(dsn) == [0, 0], "no copy of the rows remains on the coordinator"


def test_rows_that_are_there_move_to_the_nodes(filled: ServiceDsn, package: Package) -> None:
    """A mesh that runs on one server becomes a cluster: extend, register, migrate."""
    migrate(filled.owner, package=package.name, schema="notes")
    assert_rows_are_on_the_nodes(filled)


def test_a_migration_that_was_killed_leaves_copies_that_the_next_one_removes(
    filled: ServiceDsn, package: Package
) -> None:
    """It was killed after it had distributed the tables, with their rows."""
    with psycopg.connect(filled.owner, autocommit=True) as connection:
        connection.execute("alter table heads no force row level security")
        for table in ("heads", "entries"):
            connection.execute("select create_distributed_table(%s::regclass, 'tenant_id')", (table,))
        connection.execute("alter table heads force row level security")
    assert 0 not in kept_bytes(filled)
    for _ in range(2):
        migrate(filled.owner, package=package.name, schema="notes")
        assert_rows_are_on_the_nodes(filled)


def placed(dsn: ServiceDsn) -> set[str]:
    with psycopg.connect(dsn.owner) as connection:
        return {name for name, _ in connection.execute(PLACED).fetchall()}


def test_later_migrations_are_distributed_too(notes: ServiceDsn, package: Package) -> None:
    migrate(notes.owner, package=package.name, schema="notes")
    package.add(
        "0002_labels",
        "alter table entries add column label text; create index on entries (tenant_id, label);"
        "create table labels (tenant_id text, name text, primary key (tenant_id, name));",
    )
    package.add("0003_reference", "alter table labels add foreign key (tenant_id) references heads;")
    assert migrate(notes.owner, package=package.name, schema="notes") == ["0002_labels", "0003_reference"]
    assert placed(notes) == {"heads", "entries", "labels"}


def test_table_that_must_stay_is_refused_if_it_is_distributed(notes: ServiceDsn, package: Package) -> None:
    migrate(notes.owner, package=package.name, schema="notes")
    with psycopg.connect(notes.owner, autocommit=True) as connection:
        connection.execute("select create_distributed_table('queue', 'tenant_id')")
    with pytest.raises(WrongPlacement, match="queue"):
        migrate(notes.owner, package=package.name, schema="notes")
