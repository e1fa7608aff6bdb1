"""The place of each table on a Citus cluster, by the catalogue of one server."""

from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.citus import has_citus, list_placements
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database

SCHEMA = """
create table a_child (tenant_id text, id text, primary key (tenant_id, id));
create table b_parent (tenant_id text primary key, mother text);
alter table a_child add foreign key (tenant_id) references b_parent;
alter table b_parent add foreign key (mother) references b_parent;
create table c_versions (id text primary key, tenant_id text);
create table d_queue (tenant_id text, id text, primary key (tenant_id, id));
comment on table d_queue is 'citus: local';
create table e_keyless (tenant_id text);
create table f_words (tenant_id text primary key);
comment on table f_words is 'Another comment.';
"""


@pytest.fixture
def owner(postgres: Postgres) -> str:
    database = f"placed_{uuid4().hex[:12]}"
    app, owner = (
        make_conninfo(postgres.superuser_dsn, user=user, dbname=database) for user in ("hook", "hook_owner")
    )
    prepare_database(postgres.superuser_dsn, {"hook": DatabaseUrls(app, owner)})
    return owner


def test_tables_of_tenants_are_distributed_after_those_that_they_refer_to(owner: str) -> None:
    with psycopg.connect(owner) as connection:
        connection.execute(SCHEMA)
        tables = list_placements(connection, "hook")
    assert [table.name for table in tables if table.is_distributed] == ["b_parent", "f_words", "a_child"]
    assert {table.name for table in tables if not table.is_distributed} == {
        "c_versions",
        "d_queue",
        "e_keyless",
    }


def test_one_server_is_no_coordinator(owner: str) -> None:
    with psycopg.connect(owner) as connection:
        assert not has_citus(connection)
