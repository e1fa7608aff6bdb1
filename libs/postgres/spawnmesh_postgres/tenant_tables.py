"""The tables of a service with rows of tenants: what a purge deletes, and what a status counts.

A service lists its tables once. The statements are made from the list and from the primary keys in
the catalogue. Each function runs within the caller's transaction.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)

MAX_COUNT = 500
"""Rows of one table are counted up to this number, so that a status takes milliseconds."""

PrimaryKeys = Mapping[str, Sequence[str]]
"""The columns of primary keys by table. Each has `tenant_id`."""

# Takes no lock. Returns the first and the last key of a page of rows, in the order of the primary
# key. Index: the primary key.
_FIND_PAGE = """
with page as (
    select {key} from {table} where tenant_id = %(tenant_id)s order by {key} limit %(limit)s
)
(select 1 as place, {key} from page order by {key} limit 1)
union all
(select 2 as place, {key} from page order by {descending} limit 1)
order by place"""

# Locks the rows that it deletes: those of the page. Index: the primary key. A range and no list: if
# the planner knows no rows of the tenant, it may read them all, but only once. It would join them
# all to each key of a list. The bounds are values and not subqueries, so that a planner that knows
# the tenant sees how few rows lie between them.
_DELETE_PAGE = """
delete from {table}
where tenant_id = %(tenant_id)s and {first} >= %(first)s and ({key}) <= ({last})"""

# For a table with one row for each tenant. Locks the row. Index: the primary key.
_DELETE_ROW = "delete from {table} where tenant_id = %(tenant_id)s and %(limit)s > 0"

# Takes no lock. Index: one that begins with tenant_id.
_COUNT = """
select count(*) as count
from (select true from {table} where tenant_id = %(tenant_id)s limit %(limit)s) as counted"""

# Locks the row if it exists. Index: the primary key.
_PUT_WORK = "insert into {table} (tenant_id) values (%(tenant_id)s) on conflict do nothing"

# Takes no lock. Index: the primary key.
_GET_VERSION = "select settings_version from {table} where tenant_id = %(tenant_id)s"


@dataclass(frozen=True, slots=True)
class TenantTables:
    """The tables with rows of tenants.

    `rows` are in the order of their deletion: a table before those that its rows refer to.
    `settings` has a row with `settings_version` for each prepared tenant, which is deleted last.
    `work` has a row for each tenant that a worker goes through, until a purge begins: ids and
    times, which are read over all tenants.
    """

    rows: tuple[str, ...]
    settings: str
    work: str | None = None

    async def read_keys(self, connection: Connection) -> PrimaryKeys:
        """Read the primary keys of all tables of the service."""
        cursor = await connection.execute(_SQL["list_primary_keys"])
        return {row["table_name"]: row["columns"] for row in await cursor.fetchall()}

    async def get_settings_version(self, connection: Connection, tenant_id: str) -> int | None:
        """Return the version of the tenant's settings, or None if the tenant is not prepared."""
        statement = version_statement(self.settings)
        row = await (await connection.execute(statement, {"tenant_id": tenant_id})).fetchone()
        return None if row is None else int(row["settings_version"])

    async def put_work(self, connection: Connection, tenant_id: str) -> None:
        """Let the workers of the service, if it has such, go through the tenant."""
        if self.work is not None:
            query = sql.SQL(_PUT_WORK).format(table=sql.Identifier(self.work))
            await connection.execute(query, {"tenant_id": tenant_id})

    async def delete_work(self, connection: Connection, tenant_id: str) -> None:
        """Let no worker begin with the tenant any more."""
        if self.work is not None:
            statement = row_deletion_statement(self.work)
            await connection.execute(statement, {"tenant_id": tenant_id, "limit": 1})

    async def purge_page(
        self, connection: Connection, tenant_id: str, keys: PrimaryKeys, limit: int
    ) -> Counter[str]:
        """Delete at most `limit` rows, table by table, except the settings.

        Return how many by table. Nothing is left if nothing is deleted.
        """
        deleted: Counter[str] = Counter()
        for table in self.rows:
            left = limit - deleted.total()
            if count := await delete_rows(connection, tenant_id, table, keys, left):
                deleted[table] = count
            if deleted.total() >= limit:
                break
        return deleted

    async def delete_settings(
        self, connection: Connection, tenant_id: str, keys: PrimaryKeys
    ) -> Counter[str]:
        """Delete the tenant's settings. Return how many rows by table."""
        count = await delete_rows(connection, tenant_id, self.settings, keys, 1)
        return Counter({self.settings: count} if count else {})

    async def count_rows(self, connection: Connection, tenant_id: str) -> dict[str, int]:
        """Return the number of rows of each table that has some, MAX_COUNT + 1 at most."""
        counts: dict[str, int] = {}
        for table in (*self.rows, self.settings):
            page = {"tenant_id": tenant_id, "limit": MAX_COUNT + 1}
            row = await (await connection.execute(count_statement(table), page)).fetchone()
            if row is not None and row["count"]:
                counts[table] = row["count"]
        return counts


async def delete_rows(
    connection: Connection, tenant_id: str, table: str, keys: PrimaryKeys, limit: int
) -> int:
    """Delete the tenant's first `limit` rows from the table. Return how many."""
    columns = [column for column in keys[table] if column != "tenant_id"]
    page = {"tenant_id": tenant_id, "limit": limit}
    if not columns:
        return (await connection.execute(row_deletion_statement(table), page)).rowcount
    found = await (await connection.execute(page_statement(table, columns), page)).fetchall()
    if not found:
        return 0
    deletion = deletion_statement(table, columns)
    # Not prepared: a generic plan would not know how few rows lie between the bounds.
    cursor = await connection.execute(deletion, page_bounds(tenant_id, columns, found), prepare=False)
    return cursor.rowcount


def version_statement(table: str) -> sql.Composed:
    """Return the statement that reads the version of a tenant's settings."""
    return sql.SQL(_GET_VERSION).format(table=sql.Identifier(table))


def count_statement(table: str) -> sql.Composed:
    """Return the statement that counts a tenant's rows up to a limit."""
    return sql.SQL(_COUNT).format(table=sql.Identifier(table))


def row_deletion_statement(table: str) -> sql.Composed:
    """Return the statement that deletes a tenant's one row."""
    return sql.SQL(_DELETE_ROW).format(table=sql.Identifier(table))


def page_statement(table: str, columns: Sequence[str]) -> sql.Composed:
    """Return the statement that finds the first and the last key of a page of a tenant's rows."""
    key = [sql.Identifier(column) for column in columns]
    return sql.SQL(_FIND_PAGE).format(
        table=sql.Identifier(table),
        key=sql.SQL(", ").join(key),
        descending=sql.SQL(", ").join(sql.SQL("{} desc").format(column) for column in key),
    )


def deletion_statement(table: str, columns: Sequence[str]) -> sql.Composed:
    """Return the statement that deletes a page of a tenant's rows."""
    return sql.SQL(_DELETE_PAGE).format(
        table=sql.Identifier(table),
        first=sql.Identifier(columns[0]),
        key=sql.SQL(", ").join(sql.Identifier(column) for column in columns),
        last=sql.SQL(", ").join(sql.Placeholder(f"last_{column}") for column in columns),
    )


def page_bounds(tenant_id: str, columns: Sequence[str], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters that delete the page with these first and last keys."""
    last = {f"last_{column}": found[-1][column] for column in columns}
    return {"tenant_id": tenant_id, "first": found[0][columns[0]], **last}
