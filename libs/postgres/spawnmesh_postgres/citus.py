"""Distribute the tables of a schema over a Citus cluster by tenant.

A database with the extension `citus` is the coordinator of a cluster, and the migration of a schema
keeps its tables where they belong:

- A table whose primary key begins with `tenant_id` is distributed by it. All tables of a schema are
  co-located: the rows of a tenant are on one node.
- A table with the comment `citus: local` stays on the coordinator, and so does every table without
  tenants. Such a table is read over all tenants at once, and is an ordinary table.
"""

from dataclasses import dataclass

import psycopg
from psycopg import sql

STAYS_LOCAL = "citus: local"
"""The comment of a table that is read over all tenants."""

_HAS_CITUS = "select from pg_extension where extname = 'citus'"

# A table comes after those that its foreign keys refer to: Citus refuses a reference to a table
# that is not distributed yet.
_TABLES = """
with recursive depths (id, depth) as (
    select c.oid, 0 from pg_class c
    where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    union
    select f.conrelid, d.depth + 1
    from depths d
    join pg_constraint f on f.contype = 'f' and f.confrelid = d.id and f.conrelid <> d.id
)
select c.relname,
    coalesce(obj_description(c.oid, 'pg_class'), '') <> %(stays_local)s and exists (
        select from pg_constraint k
        join pg_attribute a on a.attrelid = c.oid and a.attnum = k.conkey[1]
        where k.conrelid = c.oid and k.contype = 'p' and a.attname = 'tenant_id'
    ) as is_distributed
from depths d
join pg_class c on c.oid = d.id
group by c.oid, c.relname
order by max(d.depth), c.relname
"""

_DISTRIBUTED = """
select c.relname from pg_dist_partition p join pg_class c on c.oid = p.logicalrelid
where c.relnamespace = %(schema)s::regnamespace and p.partmethod = 'h'
order by c.relname
"""


class WrongPlacement(Exception):
    """A table that must stay on the coordinator is distributed. An operator must undo that."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"the table {table} is distributed, and is read over all tenants; call undistribute_table for it"
        )
        self.table = table


@dataclass(frozen=True, slots=True)
class TablePlacement:
    """A table of a schema, and whether a Citus cluster distributes it by tenant."""

    name: str
    is_distributed: bool


def has_citus(connection: psycopg.Connection) -> bool:
    """Return whether the database is the coordinator of a Citus cluster."""
    return connection.execute(_HAS_CITUS).fetchone() is not None


def list_placements(connection: psycopg.Connection, schema: str) -> list[TablePlacement]:
    """Return the tables of the schema, in the order in which they can be distributed.

    It reads PostgreSQL's catalogue only, so it needs no Citus.
    """
    values = {"schema": schema, "stays_local": STAYS_LOCAL}
    return [TablePlacement(*row) for row in connection.execute(_TABLES, values).fetchall()]


def distribute_schema(connection: psycopg.Connection, schema: str) -> list[str]:
    """Distribute each table that is to be and is not yet, and return the names of those.

    A call that was interrupted is completed by the next one. Run it as the owner, outside of a
    transaction. Raises WrongPlacement.
    """
    present = [name for (name,) in connection.execute(_DISTRIBUTED, {"schema": schema}).fetchall()]
    placed: list[str] = []
    for table in list_placements(connection, schema):
        if table.is_distributed and table.name not in present:
            # Tables that are distributed later join the shards of the first, whatever the default
            # number of shards is by then.
            first = next(iter((*present, *placed)), None)
            _distribute(connection, schema, table.name, first)
            placed.append(table.name)
        elif not table.is_distributed and table.name in present:
            raise WrongPlacement(table.name)
    _remove_copied_rows(connection, schema)
    return placed


def _distribute(connection: psycopg.Connection, schema: str, table: str, colocated: str | None) -> None:
    """Distribute a table with its rows.

    Row-level security binds the owner too, and Citus would refuse to copy the rows.
    """
    name = sql.Identifier(schema, table)
    has_rows = _has_local_rows(connection, name)
    with connection.transaction():
        if has_rows:
            connection.execute(sql.SQL("alter table {} no force row level security").format(name))
        connection.execute(
            "select create_distributed_table(%s::regclass, 'tenant_id', colocate_with => %s)",
            (
                name.as_string(),
                "default" if colocated is None else sql.Identifier(schema, colocated).as_string(),
            ),
        )
        if has_rows:
            connection.execute(sql.SQL("alter table {} force row level security").format(name))


def _remove_copied_rows(connection: psycopg.Connection, schema: str) -> None:
    """Remove the rows that the coordinator keeps, unseen, of tables that it has distributed.

    These may also be tables of an earlier call that was interrupted. The rows of a table are
    removed after those of the tables that refer to it.
    """
    for table in reversed(list_placements(connection, schema)):
        name = sql.Identifier(schema, table.name)
        if table.is_distributed and _has_local_rows(connection, name):
            connection.execute(
                "select truncate_local_data_after_distributing_table(%s::regclass)", (name.as_string(),)
            )


def _has_local_rows(connection: psycopg.Connection, table: sql.Identifier) -> bool:
    """Return whether the table has pages on the coordinator, other than those of its shards."""
    row = connection.execute("select pg_relation_size(%s::regclass) > 0", (table.as_string(),)).fetchone()
    return row == (True,)
