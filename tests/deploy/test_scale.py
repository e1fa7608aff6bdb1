"""The SQL of the page about scale has the described effect, as far as one PostgreSQL server can
show it.
"""

import re
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.jobs import install_job_tables
from spawnmesh_postgres.migrations import migrate
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database

from tests.support.deploy.rendering import ROOT

SCALE = (ROOT / "docs/architecture/scale.md").read_text()
# Checks what Citus checks: a foreign key refers to a table that is distributed already, or to its
# own table.
DISTRIBUTE = """
create table distributed (id regclass primary key);
create function create_distributed_table(name regclass, key text, colocate_with text) returns void language plpgsql as $$
begin
  if exists (
    select from pg_constraint where contype = 'f' and conrelid = name and confrelid not in (select id from distributed union select name)
  ) then
    raise exception 'referenced table of % is not distributed', name;
  end if;
  insert into distributed values (name);
end $$
"""


@pytest.mark.parametrize("service", ["session", "attachment_blob", "transcript", "model_router", "hook"])
def test_tables_are_distributed_after_those_that_they_refer_to(postgres: Postgres, service: str) -> None:
    database = f"scaled_{uuid4().hex[:12]}"
    app, owner = (
        make_conninfo(postgres.superuser_dsn, user=user, dbname=database)
        for user in (service, f"{service}_owner")
    )
    prepare_database(postgres.superuser_dsn, {service: DatabaseUrls(app, owner)})
    if service == "session":
        install_job_tables(owner)
    migrate(owner, package=f"spawnmesh_{service}", schema=service)
    (statement,) = re.findall(r"```sql\n(.*?)```", SCALE, re.DOTALL)
    with psycopg.connect(owner, autocommit=True) as connection:
        for part in (DISTRIBUTE, statement):
            connection.execute(part)
        query = """
            select count(*) from information_schema.columns c join information_schema.tables t
            using (table_schema, table_name)
            where c.column_name = 'tenant_id' and c.table_schema = current_schema()
                and t.table_type = 'BASE TABLE'
        """
        tables = connection.execute(query).fetchone()
        assert connection.execute("select count(*) from distributed").fetchone() == tables
        assert tables is not None
        assert tables[0] >= 1
